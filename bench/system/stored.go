package system

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

// The size of the stored log.
const (
	StoredStreams   = 10_000
	StoredPerStream = 100
	StoredEvents    = StoredStreams * StoredPerStream
	// StoredCursor is the number of the message that the cursors name: the 50th.
	StoredCursor = 49
	// StoredRecent is that of clients that were cut off a moment ago.
	StoredRecent = 97
	// storedFor is how long a stored log is used: its events live for an hour.
	storedFor = 30 * time.Minute
)

// Stored is a log on disk: 10,000 streams of 100 events of 512 B each, interleaved,
// in 1,000 sessions.
type Stored struct {
	Dir  string
	made time.Time
	// Cursors are the event IDs of message StoredCursor of each stream, recent of StoredRecent.
	Cursors, Recent []string
}

// Stored returns the stored log, which is written when there is none yet, or only one
// that is too old. Only one program uses it at a time.
func (p *Programs) Stored(ctx context.Context) (*Stored, error) {
	if p.stored != nil && time.Since(p.stored.made) < storedFor {
		return p.stored, nil
	}
	if p.stored != nil {
		if err := os.RemoveAll(p.stored.Dir); err != nil {
			return nil, err
		}
		p.stored = nil
	}
	dir, err := os.MkdirTemp(p.dir, "stored-")
	if err != nil {
		return nil, err
	}
	s := &Stored{Dir: dir, made: time.Now()}
	if err := s.write(ctx, p); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("writing the log: %w", err)
	}
	p.stored = s
	return s, nil
}

func (s *Stored) write(ctx context.Context, p *Programs) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	r, err := StartRejoin(ctx, p, s.Dir)
	if err != nil {
		return err
	}
	defer r.Close()
	subjects := make([]string, StoredStreams)
	for i := range subjects {
		subjects[i] = load.SubjectOf(i)
	}
	acks, recent := make([]jetstream.PubAckFuture, StoredStreams), make([]jetstream.PubAckFuture, StoredStreams)
	for n := range StoredPerStream {
		for i, subject := range subjects {
			ack, err := r.Store(ctx, &nats.Msg{Subject: subject, Data: load.Varied(n, i)})
			if err != nil {
				return err
			}
			switch n {
			case StoredCursor:
				acks[i] = ack
			case StoredRecent:
				recent[i] = ack
			}
		}
	}
	if err := r.Flush(ctx); err != nil {
		return err
	}
	return s.setCursors(ctx, r, acks, recent)
}

// setCursors makes the event ids of the acknowledged events.
func (s *Stored) setCursors(ctx context.Context, r *Rejoin, acks, recent []jetstream.PubAckFuture) error {
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
		total += state.Entries
	}
	if total != StoredEvents {
		return fmt.Errorf("the log has %d events, want %d", total, StoredEvents)
	}
	if s.Cursors, err = load.CursorsOf(ctx, r.Conn, acks, 0); err != nil {
		return err
	}
	s.Recent, err = load.CursorsOf(ctx, r.Conn, recent, 0)
	return err
}
