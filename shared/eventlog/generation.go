package eventlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog/metadata"
)

// begun reports whether a generation has begun on a server that is alone.
func (s State) begun(server string) bool {
	return s.server == server || event.HasGeneration(s.Generations, metadata.GenerationIDOf(server))
}

// writable waits until something may be stored in a partition, as settle does. Where no janitor has
// begun a generation, it begins one: with an entry under a subject that the server's run alone has,
// so that the first to store it decides where the generation starts. The error wraps [ErrUnavailable].
func (l *Log) writable(ctx context.Context, p int) error {
	for {
		server, err := l.settle(ctx, p)
		if err != nil || l.Clustered() {
			return err
		}
		if state, _ := l.State(p); state.begun(server) {
			return nil
		}
		if again, err := l.storeGeneration(ctx, p, server); err != nil || !again {
			return unavailable(err)
		}
	}
}

// storeGeneration stores the entry that the generation of a server's run begins with. again says that
// another server is connected by now.
func (l *Log) storeGeneration(ctx context.Context, p int, server string) (again bool, err error) {
	release, err := l.parts[p].own(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	state, err := l.Look(ctx, p)
	if err != nil || state.seenOn != server {
		return true, err
	}
	if state.begun(server) {
		return false, nil
	}
	msg := nats.NewMsg(event.GenerationSubject(p, metadata.GenerationIDOf(server)))
	msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, "0")
	if _, err := l.publish(ctx, p, msg); err != nil && !errors.Is(err, ErrConflict) {
		return false, err
	}
	state, err = l.Look(ctx, p)
	return err == nil && state.seenOn != server, err
}

// AwaitGeneration returns when the partition of a session has a generation for the server that is
// connected, and begins one where no janitor does, as every publish: for those who publish straight to
// JetStream. Errors wrap [ErrUnavailable] or [ErrFull].
func (l *Log) AwaitGeneration(ctx context.Context, session string) error {
	return l.writable(ctx, l.Partition(session))
}

// unavailable is the error of what was to come before an event, which was not sent then.
func unavailable(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrFull) {
		return err
	}
	return fmt.Errorf("%w: the generation cannot be begun: %s", ErrUnavailable, err.Error())
}

// begunByEntry returns the generations that began with an entry of a partition and are not on the list
// in its metadata. When that is full, an old one may have been merged with another one: only entries
// that follow it count then.
func begunByEntry(ctx context.Context, stream jetstream.Stream, p int, gens []event.Generation) (more []event.Generation, err error) {
	from := uint64(1)
	if len(gens) >= event.MaxGenerations {
		from = gens[len(gens)-1].Start
	}
	for {
		msg, err := stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(event.GenerationSubject(p, "*")))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return more, nil
		case err != nil:
			return nil, apiError(err)
		}
		if id, ok := event.ParseGenerationSubject(p, msg.Subject); ok && !event.HasGeneration(gens, id) {
			more = append(more, event.Generation{ID: id, Start: msg.Sequence})
		}
		from = msg.Sequence + 1
	}
}
