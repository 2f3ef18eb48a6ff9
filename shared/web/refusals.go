package web

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"
)

const (
	// refusalsWithin is how long requests are counted after the first one of their kind.
	refusalsWithin = 10 * time.Second
	// refusalCauses is how many causes of one code are kinds of their own at a time.
	refusalCauses = 8
	// refusalCauseBytes is how much of a cause tells kinds apart.
	refusalCauseBytes = 256
	// refusalClients is how many clients of a kind are counted by themselves, and
	// shownClients how many of these its line has.
	refusalClients = 64
	shownClients   = 5
)

// Refusals logs the requests that are answered with a problem. The first of a kind has a line of
// its own at once; the next ones within 10 s are counted and have one line together, so that
// clients do not decide how much is logged. It holds some 0.5 MB at most. [NewApp] closes that of
// its application. It is safe for concurrent use.
type Refusals struct {
	log     *slog.Logger
	clients *Clients

	mu      sync.Mutex
	counted map[refusal]*refused
	closed  bool           // no request is counted any more
	timers  sync.WaitGroup // those that have not fired
}

// refusal is a kind of refused requests.
type refusal struct {
	code  Code
	cause string // of a failure, while its code has few of them; else empty
}

// refused has the counts of a kind after its first request.
type refused struct {
	level   slog.Level
	n       int
	clients map[netip.Addr]int
	newest  string // the cause of a failure
	timer   *time.Timer
}

// NewRefusals returns a Refusals that writes to a log. clients knows the client of a request.
func NewRefusals(log *slog.Logger, clients *Clients) *Refusals {
	return &Refusals{log: log, clients: clients, counted: map[refusal]*refused{}}
}

// levelOf returns at which level a problem is logged.
func levelOf(p *Problem) slog.Level {
	switch {
	case p.Code == CodeInternal:
		return slog.LevelError
	case p.Status >= http.StatusInternalServerError:
		return slog.LevelWarn
	case p.Status == http.StatusUnauthorized, p.Code == CodeHostNotAllowed, p.Code == CodeOriginNotAllowed:
		return slog.LevelInfo // the first problems of a new user
	default:
		return slog.LevelDebug
	}
}

// Warn logs or counts a failed request that is not answered with a problem: at level warn, and as a
// kind together with the problems of a code.
func (r *Refusals) Warn(ctx context.Context, code Code, client netip.Addr, message string, err error, attrs ...any) {
	if r.first(code, slog.LevelWarn, err.Error(), client) {
		r.log.WarnContext(ctx, message, append([]any{"code", string(code), "client", client.String(), "error", err.Error()}, attrs...)...) //nolint:sloglint // the caller's constant
	}
}

// report logs or counts an error whose problem a client receives.
func (r *Refusals) report(c *fiber.Ctx, p *Problem, err error) {
	ctx, level := c.UserContext(), levelOf(p)
	if !r.log.Enabled(ctx, level) {
		return
	}
	client := Counted(r.clients.Address(c))
	if !r.first(p.Code, level, err.Error(), client) {
		return
	}
	attrs := []any{"code", string(p.Code), "method", strings.Clone(c.Method()), "client", client.String(), "error", err.Error()}
	session, stream := Place(c)
	if session != "" {
		attrs = append(attrs, "session", session)
	}
	if stream != "" {
		attrs = append(attrs, "stream", stream)
	}
	if crash, ok := errors.AsType[*panicError](err); ok {
		attrs = append(attrs, "stack", string(crash.stack))
	}
	message := "request refused"
	if level >= slog.LevelWarn {
		message = "request failed"
	}
	r.log.Log(ctx, level, message, attrs...) //nolint:sloglint // one of two constants
}

// first reports whether a request is to be logged by itself, and counts it otherwise. cause
// matters at levels above debug.
func (r *Refusals) first(code Code, level slog.Level, cause string, client netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return true
	}
	kind := refusal{code: code}
	if level > slog.LevelDebug {
		kind.cause = strings.Clone(cause[:min(len(cause), refusalCauseBytes)])
	}
	w := r.counted[kind]
	if w == nil && kind.cause != "" && r.causes(code) >= refusalCauses {
		kind.cause = ""
		w = r.counted[kind]
	}
	if w == nil {
		w = &refused{level: level, clients: map[netip.Addr]int{}}
		r.counted[kind] = w
		r.timers.Add(1)
		w.timer = time.AfterFunc(refusalsWithin, func() {
			defer r.timers.Done()
			r.end(kind)
		})
		return true
	}
	w.n++
	if level > slog.LevelDebug {
		w.newest = strings.Clone(cause)
	}
	if _, known := w.clients[client]; known || len(w.clients) < refusalClients {
		w.clients[client]++
	}
	return false
}

// causes returns how many causes of a code are kinds of their own. The caller holds the lock.
func (r *Refusals) causes(code Code) (n int) {
	for kind := range r.counted {
		if kind.code == code && kind.cause != "" {
			n++
		}
	}
	return n
}

// end logs the counts of a kind. Its next request is a first one again.
func (r *Refusals) end(kind refusal) {
	r.mu.Lock()
	w := r.counted[kind]
	delete(r.counted, kind)
	r.mu.Unlock()
	if w != nil {
		w.report(r.log, kind.code)
	}
}

// close logs all counts, and returns when all timers have ended. Later requests are logged at once.
func (r *Refusals) close() {
	r.mu.Lock()
	r.closed = true
	counted := r.counted
	r.counted = map[refusal]*refused{}
	r.mu.Unlock()
	for kind, w := range counted {
		if w.timer.Stop() {
			r.timers.Done()
		}
		w.report(r.log, kind.code)
	}
	r.timers.Wait()
}

// report logs the number of requests, if any, and their clients.
func (w *refused) report(log *slog.Logger, code Code) {
	if w.n == 0 {
		return
	}
	most := slices.SortedFunc(maps.Keys(w.clients), func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(w.clients[b], w.clients[a]), a.Compare(b))
	})
	var clients []any
	others := w.n
	for _, client := range most[:min(len(most), shownClients)] {
		clients = append(clients, slog.Int(client.String(), w.clients[client]))
		others -= w.clients[client]
	}
	if others > 0 {
		clients = append(clients, slog.Int("others", others))
	}
	attrs := []any{"code", string(code), "count", w.n, slog.Group("clients", clients...)}
	message := "more requests refused"
	if w.level > slog.LevelDebug {
		attrs = append(attrs, "error", w.newest)
	}
	if w.level >= slog.LevelWarn {
		message = "more requests failed"
	}
	log.Log(context.Background(), w.level, message, attrs...) //nolint:sloglint // one of two constants
}
