package eventlog

import (
	"context"
	"errors"

	"rejoin/shared/event"
)

// Missing says that events of a stream are removed, or may be.
type Missing struct {
	// Stream is empty when it is not known whose events they are.
	Stream string
	// UpTo is the last sequence that is removed.
	UpTo   uint64
	Reason Reason
	// Certain says that an event was removed; else nobody can say.
	Certain bool
}

// Missing returns what was removed behind a sequence of a stream, or of all streams of a life
// when stream is empty: as the trims say that lie behind the sequence, and, below the first
// sequence of the partition, as the birth of the stream does. state is a look at the leader that
// followed whatever was read before. held is from where on the caller has everything itself,
// wherever the floor is; 0: from nowhere. Errors wrap [ErrUnavailable].
func (l *Log) Missing(ctx context.Context, state State, session, life, stream string, after, held uint64) ([]Missing, error) {
	of := event.Subject{Partition: l.Partition(session), Session: session, Life: life}
	whole, err := l.lastTrim(ctx, of, "")
	if err != nil {
		return nil, err
	}
	if stream == "" {
		return l.missingOfLife(ctx, state, of, whole, after, held)
	}
	own, err := l.lastTrim(ctx, of, stream)
	if err != nil {
		return nil, err
	}
	if state.First, err = l.firstNow(ctx, of.Partition, state, held); err != nil {
		return nil, err
	}
	var all []Missing
	if own.UpTo > after {
		all = append(all, Missing{stream, own.UpTo, own.Reason, true})
	}
	// A trim of the stream that follows one of the life says what that one took of the stream.
	if whole.UpTo > max(after, own.UpTo) && whole.Sequence > own.Sequence {
		all = append(all, Missing{stream, whole.UpTo, whole.Reason, false})
	}
	if after+1 >= state.First || own.UpTo >= state.First {
		return all, nil
	}
	expired, err := l.expired(ctx, state, of, stream, after)
	if expired != nil {
		all = append(all, *expired)
	}
	return all, err
}

// missingOfLife is Missing for all streams of a life.
func (l *Log) missingOfLife(ctx context.Context, state State, of event.Subject, whole Trim, after, held uint64) ([]Missing, error) {
	newest := map[string]Trim{}
	s := scan{log: l, p: of.Partition, filter: of.TrimsFilter(), upTo: max(state.Last, after), through: after, pull: tailPull, headersOnly: true, handle: func(e Entry) bool {
		if t := e.Trim; t != nil && t.UpTo > newest[t.Stream].UpTo {
			newest[t.Stream] = *t
		}
		return true
	}}
	if _, err := s.run(ctx); err != nil {
		return nil, err
	}
	var err error
	if state.First, err = l.firstNow(ctx, of.Partition, state, held); err != nil {
		return nil, err
	}
	var all []Missing
	if whole.UpTo > after {
		all = append(all, Missing{"", whole.UpTo, whole.Reason, false})
	}
	if after+1 < state.First {
		young, err := l.young(ctx, of)
		if err != nil {
			return nil, err
		}
		if !young {
			all = append(all, Missing{"", state.First - 1, Expired, false})
		}
	}
	for stream, t := range newest {
		if t.UpTo > after {
			all = append(all, Missing{stream, t.UpTo, t.Reason, true})
		}
	}
	return all, nil
}

// firstNow returns the first sequence of a partition after its trims were looked up: the floor
// may have passed a trim since the look before.
func (l *Log) firstNow(ctx context.Context, p int, before State, held uint64) (uint64, error) {
	now, err := l.Look(ctx, p)
	first := max(now.First, before.First)
	if held > 0 {
		first = min(first, held)
	}
	return first, err
}

// lastTrim returns the newest trim of a stream, or of the life when stream is empty; the zero
// Trim when there is none.
func (l *Log) lastTrim(ctx context.Context, of event.Subject, stream string) (Trim, error) {
	of.Kind, of.Stream = event.Trim, stream
	msg, err := l.lastMessage(ctx, of.Partition, of.String())
	if errors.Is(err, ErrNotFound) {
		return Trim{}, nil
	}
	if err != nil {
		return Trim{}, err
	}
	if t := trimIn(of, msg.Header, msg.Sequence, msg.Time); t != nil {
		return *t, nil
	}
	return Trim{}, nil
}

// expired returns what the floor took of a stream behind a sequence that lies below it; nil
// when it took nothing: the life began above it, or the stream's birth says so, if it was
// written again since.
func (l *Log) expired(ctx context.Context, state State, of event.Subject, stream string, after uint64) (*Missing, error) {
	if young, err := l.young(ctx, of); young || err != nil {
		return nil, err
	}
	m := &Missing{Stream: stream, UpTo: state.First - 1, Reason: Expired}
	of.Kind, of.Stream = event.Birth, stream
	msg, err := l.lastMessage(ctx, of.Partition, of.String())
	if errors.Is(err, ErrNotFound) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	c := copyIn(msg.Header)
	switch {
	case c == nil || c.Through+1 < state.First:
	case c.Last <= after: // nothing up to Through, and what is behind that is above the floor
		return nil, nil //nolint:nilnil // nothing is missing
	default:
		m.Certain = c.Removed > after || c.Last < state.First
	}
	return m, nil
}

// young reports whether the log has the opening of a life as it was stored first: then the life
// began above the floor.
func (l *Log) young(ctx context.Context, of event.Subject) (bool, error) {
	s := event.Subject{Partition: of.Partition, Session: of.Session, Kind: event.Open}
	msg, err := l.lastMessage(ctx, s.Partition, s.String())
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil || msg.Header.Get(headerAgain) != "" {
		return false, err
	}
	o, err := OpeningIn(Entry{Subject: s, Sequence: msg.Sequence, Data: msg.Data})
	return err == nil && o.Life == of.Life, nil
}
