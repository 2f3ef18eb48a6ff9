// Package bridge connects an unmodified MCP server to the log: it hands over what
// clients send, which comes on NATS, and stores what the server sends.
package bridge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/bridge/config"
	"rejoin/services/bridge/owners"
	"rejoin/services/bridge/resultcache"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/backend"
	"rejoin/shared/logrepeat"
	"rejoin/shared/quota"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
)

// Service is the bridge. It is safe for concurrent use.
//
//	New ──▶ Service ── Run ──▶ receive: takes calls from NATS, a goroutine for each
//	                   │         ├─ open ──▶ clientSession
//	                   │         └─ post, end, check ──▶ its session
//	                   ├─────▶ records: writes down what is open, for the next bridge
//	                   ├─────▶ present: tells the janitor which sessions have open calls
//	                   ├─────▶ patrol: ends sessions that were ended elsewhere
//	                   └─────▶ what the sessions run, see [clientSession]
//
// When Run's context ends, calls are taken no more; then life ends, and with it all
// waiting for the upstream, which is not told: the next bridge continues.
type Service struct {
	cfg      config.Config
	name     string
	backend  *backend.Backend
	log      *slog.Logger
	metrics  *metrics
	traces   *tracing.Traces
	bodies   bool           // the debug lines about publishing show messages
	troubles *logrepeat.Log // why the MCP server does not serve requests
	endpoint *upstream.Endpoint

	cache       *resultcache.Cache // nil without --cache-bytes
	taskTools   map[string]config.TaskPolicy
	era         era
	taskSupport taskSupport
	orphans     orphans
	spares      spares

	records *records      // from the start of Run on
	owners  *owners.Notes // likewise

	command *upstream.Command // of a server that speaks stdio; nil when it speaks HTTP

	doubtAfter   time.Duration                        // [doubtAfter], but for tests
	unusedAfter  time.Duration                        // [unusedAfter], but for tests
	answerWithin time.Duration                        // [answerWithin], but for tests
	goneAfter    time.Duration                        // [goneAfter], but for tests
	aliveWithin  time.Duration                        // [aliveWithin], but for tests
	after        func(time.Duration) <-chan time.Time // [time.After], but for tests: the pauses before the upstream, tasks and other bridges are asked again

	limits *session.Limits
	// callLimits are those of calls without sessions: a closed one counts until its name is free
	// again, and clients with sessions need room, too.
	callLimits *session.Limits

	inbox    chan *nats.Msg // of all subscriptions; full: NATS drops, and edges hear nothing
	handling *quota.Pool    // calls of edges that are not answered yet
	memory   *quota.Pool    // bytes of what clients have sent, until it is served
	closing  chan struct{}  // one token for a session that is being ended in the log
	open     slots          // calls of the upstream
	running  slots          // processes

	id     string                  // of this run, which tells two bridges of one name apart
	endRun context.CancelCauseFunc // has Run return [ErrReplaced]

	life    context.Context //nolint:containedctx // of all work
	endLife context.CancelCauseFunc

	taken atomic.Bool // the sessions of the bridge before are taken over

	mu       sync.Mutex
	sessions map[string]*clientSession
	stopping bool
	work     sync.WaitGroup // grows only until stopping
}

// flushTimeout bounds the wait for NATS to know the subscriptions.
const flushTimeout = time.Second

// inboxSize is how many calls may wait to be looked at, which takes microseconds.
const inboxSize = 8192

// maxBytes is the size of the largest message that the log takes.
func (s *Service) maxBytes() int { return s.backend.Log.Settings().MaxMessageBytes }

// streams returns what is open of all sessions.
func (s *Service) streams() (all []*call) {
	for _, h := range s.all() {
		all = append(all, h.streams()...)
	}
	return all
}

// run runs work, unless the service stops.
func (s *Service) run(work func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.work.Go(work)
	return true
}

func (s *Service) session(name string) *clientSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[name]
}

func (s *Service) all() []*clientSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*clientSession, 0, len(s.sessions))
	for _, h := range s.sessions {
		all = append(all, h)
	}
	return all
}

// hold begins to answer for a session.
func (s *Service) hold(h *clientSession) error {
	s.mu.Lock()
	s.sessions[h.name] = h
	s.metrics.sessions.Set(float64(len(s.sessions)))
	s.mu.Unlock()
	sub, err := s.backend.Conn.ChanQueueSubscribe(rpc.Subject(h.name), rpc.Queue, s.inbox)
	if err != nil {
		s.release(h)
		return err
	}
	h.mu.Lock()
	h.sub = sub
	h.mu.Unlock()
	return nil
}

// release ends what hold began.
func (s *Service) release(h *clientSession) {
	h.unsubscribe()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[h.name] == h {
		delete(s.sessions, h.name)
	}
	s.metrics.sessions.Set(float64(len(s.sessions)))
}

// orphans are calls whose clients have gone, and may come back: a client that makes its call again
// instead ends the first one. It is safe for concurrent use.
type orphans struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte][]chan struct{}
}

func (o *orphans) add(key [sha256.Size]byte) chan struct{} {
	again := make(chan struct{})
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[[sha256.Size]byte][]chan struct{}{}
	}
	o.all[key] = append(o.all[key], again)
	return again
}

func (o *orphans) remove(key [sha256.Size]byte, again chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	left := slices.DeleteFunc(o.all[key], func(other chan struct{}) bool { return other == again })
	if o.all[key] = left; len(left) == 0 {
		delete(o.all, key)
	}
}

// made ends the orphans of a call that its client has made again.
func (o *orphans) made(key [sha256.Size]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, again := range o.all[key] {
		close(again)
	}
	delete(o.all, key)
}

// era is whether the MCP server speaks the revision without sessions. It is a property of the
// server, not of a request (MCP 2026-07-28, Versioning). It is safe for concurrent use.
type era struct {
	mu     sync.Mutex // held while the server is asked: others wait for the answer
	modern bool
	tasks  bool // it has tasks of its own
	until  time.Time
	// refused is the answer while the server could not be asked, until then.
	refused      *rpc.Answer
	refusedUntil time.Time
}

// slots bounds how many there are at once of what a gauge counts, of which each client has a
// share; see [quota.Pool]. It is safe for concurrent use.
type slots struct {
	pool  *quota.Pool
	count prometheus.Gauge
}

func newSlots(n int, count prometheus.Gauge) slots {
	return slots{pool: quota.NewPool(int64(n)), count: count}
}

// enter takes a place for a client, if there is one; leave gives it back.
func (p slots) enter(client string) bool {
	if !p.pool.Take(client, 1) {
		return false
	}
	p.count.Inc()
	return true
}

func (p slots) leave(client string) {
	p.pool.Give(client, 1)
	p.count.Dec()
}

// mostlyFree reports whether less than half is taken.
func (p slots) mostlyFree() bool { return 2*p.pool.Used() < p.pool.Capacity() }

// shareOf returns whose share a call of an edge is of: that of its session, or of the one that it begins.
// What ends something, or asks about it, is nobody's: it frees what the client has, or keeps it from being
// taken for abandoned.
func (s *Service) shareOf(c rpc.Call) string {
	if c.Action == rpc.Check || c.Action == rpc.Cancel || c.Action == rpc.End {
		return ""
	}
	if h := s.session(c.Session); h != nil {
		return h.owner
	}
	return clientOf(c)
}

// clientOf returns whose share the session is of that a call begins: the owner's, or without
// access control that of the client's address; empty when it is not known.
func clientOf(c rpc.Call) string { return cmp.Or(c.Owner, c.Client) }
