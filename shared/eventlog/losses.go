package eventlog

import (
	"context"
	"math"

	"rejoin/shared/event"
)

// Loss says that events of a life are removed, or may be.
type Loss struct {
	// Stream is the stream of the events. Empty means all streams when Certain, else it is unknown
	// which ones.
	Stream string
	// UpTo is the last sequence that is removed.
	UpTo   uint64
	Reason Reason
	// Certain says that an event was removed; else that is unknown.
	Certain bool
}

// LossesAfter returns the losses after a sequence of a stream, or of all streams of a life when
// stream is empty: by the trims after the sequence, and, below the first sequence of the
// partition, by the birth of the stream or an original opening of the life.
//
// It also returns the look at the leader by which the losses are judged: look is called once the
// trims were read, since the floor may pass a trim before, and must return a look that begins
// then, such as [Log.LookAfterRead].
//
// held is the sequence from which on the caller holds every event itself, so that no proof is needed
// there; 0 if it holds none. Errors wrap [ErrUnavailable], or are those of look.
func (l *Log) LossesAfter(ctx context.Context, look func(ctx context.Context, p int) (State, error), session, life, stream string, after, held uint64) ([]Loss, State, error) {
	of := event.Subject{Partition: l.Partition(session), Session: session, Life: life}
	whole, err := l.newestTrim(ctx, of, "")
	if err != nil {
		return nil, State{}, err
	}
	var newest map[string]Trim
	if stream == "" {
		newest, err = l.trimsOf(ctx, of, after)
	} else {
		newest = map[string]Trim{}
		newest[stream], err = l.newestTrim(ctx, of, stream)
	}
	if err != nil {
		return nil, State{}, err
	}
	state, err := look(ctx, of.Partition)
	if err != nil {
		return nil, State{}, err
	}
	whole = whole.in(state.Generations)
	for stream, t := range newest {
		newest[stream] = t.in(state.Generations)
	}
	first := state.First
	if held > 0 {
		first = min(first, held)
	}
	var all []Loss
	if stream == "" {
		all, err = l.lossesOfLife(ctx, first, of, whole, newest, after)
	} else {
		all, err = l.lossesOfStream(ctx, first, state.Generations, of, stream, whole, newest[stream], after)
	}
	return all, state, err
}

// lossesOfStream is LossesAfter for one stream. first is the floor.
func (l *Log) lossesOfStream(ctx context.Context, first uint64, gens []event.Generation, of event.Subject, stream string, whole, own Trim, after uint64) ([]Loss, error) {
	var all []Loss
	if own.UpTo > after {
		all, after = append(all, Loss{stream, own.UpTo, own.Reason, !own.unread}), own.UpTo
	}
	if whole.UpTo > after {
		all, after = append(all, Loss{stream, whole.UpTo, whole.Reason, false}), whole.UpTo
	}
	if after+1 >= first { // the trims explain all events below first
		return all, nil
	}
	expired, err := l.expired(ctx, first, gens, of, stream, after)
	if expired != nil {
		all = append(all, *expired)
	}
	return all, err
}

// trimsOf returns the newest trim of each stream of a life that lies after a sequence.
func (l *Log) trimsOf(ctx context.Context, of event.Subject, after uint64) (map[string]Trim, error) {
	newest := map[string]Trim{}
	s := scan{log: l, p: of.Partition, filter: of.TrimsFilter(), upTo: math.MaxUint64, through: after, pull: tailPull, headersOnly: true, handle: func(e Entry) bool {
		if t := readerTrim(e.Trim, e.Subject, e.Sequence); e.Valid && t.UpTo > newest[t.Stream].UpTo {
			newest[t.Stream] = t
		}
		return true
	}}
	_, err := s.run(ctx)
	return newest, err
}

// lossesOfLife is LossesAfter for all streams of a life.
func (l *Log) lossesOfLife(ctx context.Context, first uint64, of event.Subject, whole Trim, newest map[string]Trim, after uint64) ([]Loss, error) {
	var all []Loss
	if whole.UpTo > after {
		all = append(all, Loss{"", whole.UpTo, whole.Reason, false})
	}
	if after+1 < first {
		young, err := l.young(ctx, first, of)
		if err != nil {
			return nil, err
		}
		if !young {
			all = append(all, Loss{"", first - 1, Expired, false})
		}
	}
	for stream, t := range newest {
		if t.UpTo > after {
			all = append(all, Loss{stream, t.UpTo, t.Reason, !t.unread})
		}
	}
	return all, nil
}

// newestTrim returns the newest trim of a stream, or of the life when stream is empty; the zero
// Trim when there is none.
func (l *Log) newestTrim(ctx context.Context, of event.Subject, stream string) (Trim, error) {
	of.Kind, of.Stream = event.Trim, stream
	msg, err := l.newest(ctx, of.Partition, of.String())
	if err != nil || msg == nil {
		return Trim{}, err
	}
	return readerTrim(trimIn(of, msg.Header, msg.Sequence, msg.Time), of, msg.Sequence), nil
}

// expired returns the loss of a stream below the floor, after a sequence that lies below it; nil
// when there is none: the life began above the floor, or the stream's birth proves it, if it was
// written again since.
func (l *Log) expired(ctx context.Context, first uint64, gens []event.Generation, of event.Subject, stream string, after uint64) (*Loss, error) {
	if young, err := l.young(ctx, first, of); young || err != nil {
		return nil, err
	}
	m := &Loss{Stream: stream, UpTo: first - 1, Reason: Expired}
	of.Kind, of.Stream = event.Birth, stream
	msg, err := l.newest(ctx, of.Partition, of.String())
	if err != nil || msg == nil {
		return m, err
	}
	c := birthCopyIn(msg.Header)
	switch {
	case c == nil || c.Through+1 < first || !c.Holds(gens):
	case c.Newest <= after: // no event after the cursor up to Through, and later ones are above the floor
		return nil, nil //nolint:nilnil // nothing is missing
	default: // the copy may be of a later floor, and events removed since lie above first
		m.Certain = c.NewestRemoved > after && c.NewestRemoved < first || c.Newest < first
	}
	return m, nil
}

// young reports whether the log has the opening of a life as it was stored first, above the floor:
// then the life began there.
func (l *Log) young(ctx context.Context, first uint64, of event.Subject) (bool, error) {
	s := event.Subject{Partition: of.Partition, Session: of.Session, Kind: event.Open}
	msg, err := l.newest(ctx, s.Partition, s.String())
	if err != nil || msg == nil || msg.Header.Get(headerAgain) != "" {
		return false, err
	}
	o, err := OpeningIn(Entry{Subject: s, Sequence: msg.Sequence, Data: msg.Data})
	return err == nil && o.Life == of.Life && o.Sequence >= first, nil
}
