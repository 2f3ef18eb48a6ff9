package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/natsconn"
)

// Bucket is the key-value bucket of the leases. It lies in memory: a restarted server has none, so
// that a janitor that dies with its server does not delay the generations.
const Bucket = "MCP_LEASE"

// The keys of the bucket are partition.<n>, the lease of a partition, and janitor.<id>, the presence of
// a janitor.
const (
	partitionKey = "partition."
	janitorKey   = "janitor."
)

// holder is the value of a key.
type holder struct {
	ID   string `json:"id"`
	Host string `json:"host,omitempty"`
}

// holderSubject returns the subject on which the janitor with an ID answers as long as it is connected.
func holderSubject(id string) string { return "mcp.janitor.alive." + id }

// open creates the bucket if it is missing. An existing one determines how long the leases are.
func (s *Leases) open(ctx context.Context) bool {
	length := s.length()
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	kv, err := s.ensure(ctx, length)
	if err == nil {
		err = s.adopt(ctx, kv, length)
	}
	if err != nil {
		s.complain(ctx, "cannot open the bucket of the leases", err)
		return false
	}
	s.kv = kv
	return true
}

// ensure makes the bucket if it is missing.
func (s *Leases) ensure(ctx context.Context, length time.Duration) (jetstream.KeyValue, error) {
	cfg := bucket.Config(Bucket, "Rejoin: which janitor acts for which partition", s.replicas)
	cfg.MaxAge, cfg.Storage = length, jetstream.MemoryStorage
	return bucket.Ensure(ctx, s.js, cfg)
}

// length returns how long a lease is.
func (s *Leases) length() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sharing.lease
}

// complain logs the first trouble of a connection.
func (s *Leases) complain(ctx context.Context, what string, err error) {
	s.mu.Lock()
	first := !s.complained && ctx.Err() == nil
	s.complained = s.complained || first
	s.mu.Unlock()
	if first {
		s.logger.Warn(what, "error", err) //nolint:sloglint // one of two constants
	}
}

// adopt takes the leases' length from the bucket.
func (s *Leases) adopt(ctx context.Context, kv jetstream.KeyValue, given time.Duration) error {
	var status jetstream.KeyValueStatus
	if err := natsconn.NewServer(s.nc).Repeat(ctx, func(ctx context.Context) (err error) {
		status, err = kv.Status(ctx)
		return err
	}); err != nil {
		return err
	}
	ttl := status.TTL()
	if ttl <= 0 {
		return fmt.Errorf("the bucket %s keeps leases without limit", Bucket)
	}
	if ttl != given {
		s.logger.Warn("the lease has another length already, and keeps it", "flag", "--lease", "given", given.String(), "lease", ttl.String())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sharing.lease = ttl
	for _, l := range s.all {
		l.state.lease = ttl
	}
	return nil
}

// pause is how long a candidate waits to look again.
func (s *Leases) pause() time.Duration { return s.length() / waitShare }

// value returns the value of the keys that this janitor writes.
func (s *Leases) value() []byte {
	host, _ := os.Hostname()                     // for people only
	value, _ := json.Marshal(holder{s.id, host}) // texts always can be written
	return value
}

// announcePresence writes the key of this janitor's presence, and reports whether the bucket has
// answered. Until it does, this janitor tries to get no lease, and reads instead of writing: an unanswered
// write may arrive, and keep a lease from the others that this janitor does not know to be its own.
func (s *Leases) announcePresence(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, s.pause())
	defer cancel()
	s.mu.Lock()
	before := s.answered
	s.mu.Unlock()
	var err error
	if !before {
		if _, err = s.kv.Get(ctx, janitorKey+s.id); errors.Is(err, jetstream.ErrKeyNotFound) {
			err = nil
		}
	}
	if err == nil {
		_, err = s.kv.Put(ctx, janitorKey+s.id, s.value())
	}
	if err != nil {
		s.complain(ctx, "cannot say that this janitor is there", err)
	}
	again := err == nil && !before
	s.mu.Lock()
	s.answered = err == nil
	if again {
		s.sharing.answers(s.now())
	}
	after := s.sharing.returning
	s.mu.Unlock()
	if again {
		s.ringAll()
		time.AfterFunc(after, s.ringAll)
	}
	return err == nil
}

// withdrawPresence deletes the key of this janitor's presence.
func (s *Leases) withdrawPresence(ctx context.Context) {
	ctx, done := s.lastly(ctx)
	defer done()
	_ = s.kv.Delete(ctx, janitorKey+s.id) // else it expires
}

// gone reports whether a janitor has surely lost its connection to the only server,
// so that nothing it does has any effect before it connects again, and then
// it does not hold a lease any more.
func (s *Leases) gone(ctx context.Context, id string) bool {
	if s.nc.ConnectedClusterName() != "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, s.pause())
	defer cancel()
	_, err := s.nc.RequestWithContext(ctx, holderSubject(id), nil)
	return errors.Is(err, nats.ErrNoResponders)
}

// follow follows the bucket for the holders of the partitions and the presence of janitors, until ctx ends.
func (s *Leases) follow(ctx context.Context) {
	for ctx.Err() == nil {
		_ = bucket.Follow(ctx, s.js, Bucket, func(e bucket.Entry) { // it begins again
			var h holder
			if !e.Removed && json.Unmarshal(e.Value, &h) != nil {
				h.ID = unknownHolder
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.heard(e.Key, h, e.Removed)
		}, func() {})
		natsconn.Pause(ctx, s.pause())
	}
}

// releaseWithin bounds the release of a lease.
const releaseWithin = time.Second

// lastly returns a context for requests at the end of the program.
func (s *Leases) lastly(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	ctx, done := natsconn.While(ctx, s.nc)
	return ctx, func() {
		done()
		cancel()
	}
}

// heard notes an entry of the bucket.
func (s *Leases) heard(key string, h holder, removed bool) {
	now := s.now()
	if id, ok := strings.CutPrefix(key, janitorKey); ok {
		if removed {
			s.sharing.leave(id, now)
			s.ringAll()
			return
		}
		s.sharing.hear(id, now)
		return
	}
	p, err := strconv.Atoi(strings.TrimPrefix(key, partitionKey))
	if err != nil || p < 0 || p >= len(s.all) {
		return
	}
	if removed {
		h.ID = ""
	}
	s.sharing.held(p, h.ID, now)
	switch {
	case h.ID == "":
		s.all[p].ring()
	case h.ID != s.id && s.all[p].term == nil:
		s.Elsewhere(p)
	}
}
