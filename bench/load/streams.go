package load

import (
	"context"
	"errors"
	"log/slog"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// Partitions is the number of partitions that a log has by default.
const Partitions = 16

// StreamsPerSession spreads streams over sessions, and so over partitions.
const StreamsPerSession = 10

// SessionOf returns the session of a stream.
func SessionOf(stream int) string { return "bench" + strconv.Itoa(stream/StreamsPerSession) }

// SubjectOf returns the subject of a stream's events in the log.
func SubjectOf(stream int) string {
	session := SessionOf(stream)
	return event.Subject{Partition: event.Partition(session, Partitions), Session: session, Stream: strconv.Itoa(stream)}.String()
}

// EventsPath is the path of a stream at an edge.
func EventsPath(stream int) string {
	return "/v1/sessions/" + SessionOf(stream) + "/streams/" + strconv.Itoa(stream) + "/events"
}

// cursorOf returns the event id of a sequence in a stream, as it is while the
// session is not registered; it stays as good afterwards.
func cursorOf(state eventlog.State, stream int, sequence uint64) string {
	name := strconv.Itoa(stream)
	tag := event.TagParts{Origin: state.Origin, Generation: state.Generation().ID, Session: SessionOf(stream), Stream: name}.Tag()
	return event.ID{Stream: name, Tag: tag, Sequence: sequence}.String()
}

// CursorsOf returns the event ID of the acknowledged event of each stream, from stream number first on.
func CursorsOf(ctx context.Context, nc *nats.Conn, acks []jetstream.PubAckFuture, first int) ([]string, error) {
	log, err := eventlog.Open(ctx, nc, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	states := make([]eventlog.State, log.Settings().Partitions)
	for p := range states {
		if states[p], err = log.Look(ctx, p); err != nil {
			return nil, err
		}
	}
	all := make([]string, len(acks))
	for i, ack := range acks {
		select {
		case a := <-ack.Ok():
			all[i] = cursorOf(states[log.Partition(SessionOf(first+i))], first+i, a.Sequence)
		default:
			return nil, errors.New("an event was not acknowledged")
		}
	}
	return all, nil
}
