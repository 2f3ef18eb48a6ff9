package mcpstore

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"rejoin/shared/backend"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// Config configures a [Store]. The zero value is good.
type Config struct {
	// Owner owns the sessions that the store registers: with access control, the
	// subject whose tokens may read them over HTTP. Default: none.
	Owner string

	// Timeout bounds each call; an Append's begins when those before it on its stream
	// have ended. Append and After try again until then while NATS is unavailable, and a stream's
	// messages wait for it meanwhile. A NATS server that restarts needs a few seconds.
	// Default: 10 s.
	Timeout time.Duration

	// AckTimeout bounds one attempt of an Append. Default: 2 s.
	AckTimeout time.Duration

	// MaxStreams is how many streams the store remembers, about 300 B each; one that was
	// forgotten is read from the log when it is used again. Default: 65,536.
	MaxStreams int

	// Log receives warnings. Default: nothing is logged.
	Log *slog.Logger
}

// Store keeps event streams in Rejoin's log. It implements [mcp.EventStore] and is safe
// for concurrent use, from any number of processes.
//
//	New ──starts──▶ mend: one goroutine, stores notes of failed Appends;
//	                ends in Close
//
// One process at a time writes a stream. A process that opens it later takes it over; when the
// earlier one continues all the same, After fails from then on with [ErrForked].
//
// The retention, in time and size, is the log's own setting. The janitor closes a session
// that its server does not close when it has been idle for long enough (--idle-after).
type Store struct {
	backend *backend.Backend
	cfg     Config
	streams *streams

	mu     sync.Mutex
	broken map[*stream]struct{} // those with a failed Append of which the log has no note

	poked chan struct{} // holds a token when a note is to be stored
	stop  context.CancelFunc
	work  sync.WaitGroup
}

var _ mcp.EventStore = (*Store)(nil)

// New returns a store on a backend, which must stay open until Close has returned.
func New(b *backend.Backend, cfg Config) *Store {
	cfg.Timeout = cmp.Or(max(cfg.Timeout, 0), 10*time.Second)
	cfg.AckTimeout = cmp.Or(max(cfg.AckTimeout, 0), 2*time.Second)
	cfg.MaxStreams = cmp.Or(max(cfg.MaxStreams, 0), 1<<16)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		backend: b, cfg: cfg, streams: newStreams(cfg.MaxStreams), stop: stop,
		broken: map[*stream]struct{}{}, poked: make(chan struct{}, 1),
	}
	s.work.Go(func() { s.mend(ctx) })
	return s
}

// Close ends the store's own work. It does not close the backend.
func (s *Store) Close() {
	s.stop()
	s.work.Wait()
}

// Open registers the session on first use and finds the last index of the stream.
// A request's stream of which the log holds nothing is a new one, since the SDK names it
// at random. When the standalone stream of a session may have had events and all are
// deleted, it continues at an index that no client has, so that After reports them as lost. Without
// a session ID, as in a stateless server, the store keeps nothing.
//
// Errors wrap [ErrInvalidName], [session.ErrClosed], or report that NATS is unavailable.
func (s *Store) Open(ctx context.Context, sessionID, streamID string) error {
	if sessionID == "" {
		return nil
	}
	at, err := placeOf(sessionID, streamID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	created := false // by an attempt of this Open
	return patiently(ctx, func() error {
		rec, now, err := s.register(ctx, at.session)
		if err != nil {
			return err
		}
		created = created || now
		return s.open(ctx, at, rec.Life, created || at.stream != standalone)
	})
}

// open finds the last index of a stream in a life of its session. With mayBeNew, since the SDK has named
// it or the session is new, a stream of which the log holds nothing is new.
func (s *Store) open(ctx context.Context, at place, life string, mayBeNew bool) error {
	st := s.streams.use(at)
	release, err := st.own(ctx)
	if err != nil {
		return err
	}
	defer release()
	if st.writer != "" && st.life == life {
		return s.reload(ctx, st)
	}
	if mayBeNew && st.counted() == 0 {
		_, err := s.backend.Log.NewestSequence(ctx, event.Subject{Partition: s.backend.Log.Partition(at.session), Session: at.session, Life: life, Stream: at.stream})
		if errors.Is(err, eventlog.ErrNotFound) {
			st.begin(life, 0)
			return nil
		}
	}
	return s.load(ctx, st, life)
}

// register opens a session on first use, and reports whether it did. The error wraps
// [session.ErrClosed] when it has ended.
func (s *Store) register(ctx context.Context, name string) (rec session.Record, created bool, err error) {
	sessions := s.backend.Sessions
	rec, err = sessions.Ensure(ctx, name, func() (session.Record, error) {
		rec, err := sessions.Create(ctx, session.New(name, s.cfg.Owner, nil, time.Now()))
		created = err == nil
		return rec, err
	})
	return rec, created, err
}

// closeWithin bounds SessionClosed, during which the SDK holds a lock.
const closeWithin = 2 * time.Second

// SessionClosed ends the session in the log: it takes no more events, its streams
// end, and After returns no events of it from now on. The janitor removes its events after a
// grace (--closed-grace). Ending a session that is not known, or again, does nothing. Errors
// report that NATS is unavailable; the janitor then ends the session when it has been idle.
func (s *Store) SessionClosed(ctx context.Context, sessionID string) error {
	if sessionID == "" {
		return nil
	}
	at, err := placeOf(sessionID, "")
	if err != nil {
		return err
	}
	s.streams.forget(at.session)
	s.mu.Lock()
	maps.DeleteFunc(s.broken, func(st *stream, _ struct{}) bool { return st.at.session == at.session })
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, closeWithin)
	defer cancel()
	if err := s.backend.Sessions.End(ctx, at.session, "", false); !errors.Is(err, session.ErrNotFound) {
		return err
	}
	return nil
}
