package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rejoin/shared/bucket"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/link"
)

// Marker writes markers; [eventlog.Log] is one.
type Marker interface {
	Mark(ctx context.Context, kind event.Kind, session, stream string) (eventlog.Ack, error)
}

// Close ends a session, or one stream of it when stream is not empty, and clears
// it too when alsoClear is set. It is safe to repeat, and to finish what another
// process began: a session that stays closing is closed by calling Close again.
//
// The order is what makes the marker the last entry: the state becomes closing,
// from when on every ingest refuses messages; settle passes, which must be longer
// than a publish can be under way; then the =close marker is written. In a cluster it
// waits for longer by what an ingest's copy of the registry may be behind.
//
// Errors wrap [ErrNotFound], [ErrConflict], [ErrUnavailable], or those of
// [eventlog.Log.Mark].
func Close(ctx context.Context, r *Registry, log Marker, name, stream string, alsoClear bool, settle time.Duration) error {
	server := link.NewServer(r.nc)
	rec, err := r.beginClose(ctx, name, stream, alsoClear)
	if err != nil {
		return err
	}
	if rec.State == Closed {
		if !alsoClear || rec.Clear {
			return nil
		}
		if _, err := log.Mark(ctx, event.Clear, name, stream); err != nil {
			return err
		}
		return r.rememberClear(ctx, rec, stream)
	}
	if settle > 0 && server.Clustered() {
		settle += bucket.Lag
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(settle):
	}
	ack, err := log.Mark(ctx, event.Close, name, stream)
	if err != nil {
		return err
	}
	if rec.Clear {
		if _, err := log.Mark(ctx, event.Clear, name, stream); err != nil {
			return err
		}
	}
	rec.State, rec.ClosedAt, rec.Ended = Closed, ack.Sequence, time.Now().UTC()
	_, err = r.Update(ctx, rec)
	if errors.Is(err, ErrConflict) {
		// Another closer was faster; its marker is as good as this one.
		if now, getErr := r.Get(ctx, name, stream); getErr == nil && now.State == Closed {
			return nil
		}
	}
	return err
}

// rememberClear notes that what was closed before is cleared too, so that a
// repetition writes no second marker. The session's record of a closed session
// says nothing of one stream.
func (r *Registry) rememberClear(ctx context.Context, rec Record, stream string) error {
	if rec.Stream != stream {
		return nil
	}
	rec.Clear = true
	if _, err := r.Update(ctx, rec); err != nil && !errors.Is(err, ErrConflict) {
		return err
	}
	return nil
}

// beginClose makes the record say closing, unless it says closed.
func (r *Registry) beginClose(ctx context.Context, name, stream string, alsoClear bool) (Record, error) {
	owner, err := r.Get(ctx, name, "")
	if err != nil {
		return Record{}, err
	}
	rec := owner
	if stream != "" {
		if owner.State == Closed {
			return owner, nil // the session's end is the stream's
		}
		rec, err = r.Get(ctx, name, stream)
		if errors.Is(err, ErrNotFound) {
			rec, err = r.Create(ctx, Record{
				Session: name, Stream: stream, State: Closing, Created: owner.Created,
				Ended: time.Now().UTC(), Clear: alsoClear, Incarnation: owner.Incarnation,
			})
			if errors.Is(err, ErrExists) {
				err = fmt.Errorf("%w: %w", ErrConflict, err)
			}
			return rec, err
		}
		if err != nil {
			return Record{}, err
		}
	}
	if rec.State == Closed || rec.State == Closing && (rec.Clear || !alsoClear) {
		return rec, nil
	}
	rec.State, rec.Clear, rec.Ended = Closing, rec.Clear || alsoClear, time.Now().UTC()
	return r.Update(ctx, rec)
}
