package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/bench/load"
	"rejoin/shared/eventlog"
)

const (
	storedStreams   = 10_000
	storedPerStream = 100
	storedEvents    = storedStreams * storedPerStream
	// storedCursor is the number of the message that the cursors stand on: the 50th.
	storedCursor = 49
	// storedRecent is that of clients that were cut off a moment ago.
	storedRecent = 97
	// storedFor is how long a stored log is used: its events live for an hour.
	storedFor = 30 * time.Minute
	// frameBytes is about what an event of 512 B takes in a window, with its entry.
	frameBytes = 700
)

// stored is a log on disk: 10,000 streams of 100 events of 512 B each, interleaved,
// in 1,000 sessions.
type stored struct {
	dir  string
	made time.Time
	// cursors are the event IDs of message storedCursor of each stream, recent of storedRecent.
	cursors, recent []string
}

// log returns the stored log, which is written when there is none yet, or none that
// will do. Only one program uses it at a time.
func (p *programs) log(ctx context.Context) (*stored, error) {
	if p.stored != nil && time.Since(p.stored.made) < storedFor {
		return p.stored, nil
	}
	if p.stored != nil {
		if err := os.RemoveAll(p.stored.dir); err != nil {
			return nil, err
		}
		p.stored = nil
	}
	dir, err := os.MkdirTemp(p.dir, "stored-")
	if err != nil {
		return nil, err
	}
	s := &stored{dir: dir, made: time.Now()}
	if err := s.write(ctx, p); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("writing the log: %w", err)
	}
	p.stored = s
	return s, nil
}

func (s *stored) write(ctx context.Context, p *programs) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	r, err := startRejoin(ctx, p, s.dir)
	if err != nil {
		return err
	}
	defer r.close()
	subjects := make([]string, storedStreams)
	for i := range subjects {
		subjects[i] = load.SubjectOf(i)
	}
	acks, recent := make([]jetstream.PubAckFuture, storedStreams), make([]jetstream.PubAckFuture, storedStreams)
	for n := range storedPerStream {
		for i, subject := range subjects {
			ack, err := r.Store(ctx, &nats.Msg{Subject: subject, Data: load.Varied(n, i)})
			if err != nil {
				return err
			}
			switch n {
			case storedCursor:
				acks[i] = ack
			case storedRecent:
				recent[i] = ack
			}
		}
	}
	if err := r.Flush(ctx); err != nil {
		return err
	}
	return s.setCursors(ctx, r, acks, recent)
}

// setCursors makes the event ids of what was acknowledged.
func (s *stored) setCursors(ctx context.Context, r *rejoin, acks, recent []jetstream.PubAckFuture) error {
	log, err := eventlog.Open(ctx, r.Conn, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer log.Close()
	total := uint64(0)
	for p := range log.Settings().Partitions {
		state, err := log.Look(ctx, p)
		if err != nil {
			return err
		}
		total += state.Events
	}
	if total != storedEvents {
		return fmt.Errorf("the log has %d events, want %d", total, storedEvents)
	}
	if s.cursors, err = load.CursorsOf(ctx, r.Conn, acks, 0); err != nil {
		return err
	}
	s.recent, err = load.CursorsOf(ctx, r.Conn, recent, 0)
	return err
}
