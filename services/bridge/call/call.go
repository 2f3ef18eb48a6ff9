// Package call has the calls of clients: it tracks the requests without a response, and stores the MCP server's
// messages for them in the log. A session is a [Scope] here, and the server is an interface.
package call

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
	"rejoin/shared/tracing"
)

// Scope is the part of a session that its calls, and the MCP server's side of it, use: the session's name, and the
// lifetime of its work. It is safe for concurrent use.
type Scope struct {
	Host    *host.Host
	Session Session
	Name    string
	Life    string
	OneCall bool            // the session has one call, and is in the log once there is something to store
	Ctx     context.Context //nolint:containedctx // of all that is done for the session
	over    chan struct{}   // closed when the session has ended, and its streams with it
	// Asking says that the upstream has asked the client questions that the log does not have yet: the upstream has
	// to send them to the next bridge again.
	Asking atomic.Bool

	end context.CancelCauseFunc

	// Receiver gets the messages that belong to no call, in place of the client; nil for none. It is set before the
	// first message is read.
	Receiver Receiver

	mu     sync.Mutex
	work   sync.WaitGroup // of calls and listen; grows only until ending
	ending bool
}

// Session is the client's side of a session.
type Session interface {
	// Finish ends the session. It returns at once, and does nothing the second time.
	Finish(cause error)
	// AnswerOrOpen is called before an event of a call is stored. done says that the event must not be stored: it is
	// the client's answer, or left out. Errors are [ErrClosed] and [upstream.ErrTooLarge].
	AnswerOrOpen(c *Call, it Item) (done bool, err error)
	// NoteTasks takes a response of the MCP server, and returns the part of it that the client receives.
	NoteTasks(m rpc.Message, data []byte) ([]byte, error)
	// InLog reports whether the session is in the log.
	InLog() bool
	// IsTask reports whether the session's call is a task.
	IsTask() bool
}

// NewScope returns the scope of a session in the log, whose client's side is side.
func NewScope(h *host.Host, name, life string, side Session) *Scope {
	s := &Scope{Host: h, Name: name, Life: life, Session: side, over: make(chan struct{})}
	s.Ctx, s.end = context.WithCancelCause(h.Life)
	return s
}

// Go runs work of the session, unless the session has ended.
func (s *Scope) Go(work func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return false
	}
	s.work.Add(1)
	ok := s.Host.Go(func() {
		defer s.work.Done()
		work()
	})
	if !ok {
		s.work.Done()
	}
	return ok
}

// Stop ends the running work, and lets no more begin. It acts once: the second time it returns false. With
// [host.ErrEnded] the streams end as well.
func (s *Scope) Stop(cause error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return false
	}
	s.ending = true
	if errors.Is(cause, host.ErrEnded) {
		close(s.over)
	}
	s.end(cause)
	return true
}

// Wait waits for the running work, after Stop.
func (s *Scope) Wait() { s.work.Wait() }

// HasEnded reports whether Stop was called.
func (s *Scope) HasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// Cursor is how far an upstream's stream has been stored.
type Cursor struct {
	// ID is the upstream's last event ID; empty when it gives none.
	ID string
	// Sequence is that of the log's last event at that time.
	Sequence uint64
}

// Call is a body of requests whose responses go to one stream. One goroutine serves it,
// and calls Take, Moved, End and Refuse; all other methods are safe for concurrent use.
type Call struct {
	*requests
	Scope  *Scope
	Stream string
	Began  time.Time
	out    *Writer
	Reply  chan rpc.Answer // holds the client's immediate answer
	To     Receiver        // gets the upstream's messages; nil: the client gets them
	// Rewrite turns the MCP server's response into the one that the client receives; nil: the same.
	Rewrite func(m rpc.Message, data []byte) []byte
	// RefuseAs turns the upstream's refusal of a request into the client's answer; nil: the same.
	RefuseAs func(rpc.Answer) rpc.Answer
	// CancelAtOnce is for an upstream that learns of a cancellation only by the end of its connection. Other
	// upstreams have a while to end the call.
	CancelAtOnce bool

	Tried    chan struct{} // of a standalone stream; see WasTried
	WasTried func()        // notes that the upstream has answered a request for its standalone stream, or will not

	mu      sync.Mutex
	told    bool
	refused bool // with an error
	// repeatable says that the client may make its request again: the MCP server does not have it yet, or changes
	// nothing for it.
	repeatable bool

	at     Cursor
	resume Cursor              // where the next bridge continues: at, or before the questions of [Scope.Asking]
	stored uint64              // the sequence of the log's last event
	again  map[string]bool     // the [eventlog.MessageID] of each event that the log had after the cursor at the take-over
	named  bool                // the log has the response that names the call's task
	idle   *upstream.IdleTimer // nil until WithIdleTimer
}

// New returns a call of a session: a body of requests with these IDs.
func New(s *Scope, stream string, ids []json.RawMessage) *Call {
	c := &Call{
		requests: newRequests(ids), Scope: s, Stream: stream, Began: time.Now(),
		out: NewWriter(s.Host, s.Name, s.Life, stream), Reply: make(chan rpc.Answer, 1),
	}
	c.out.over = s.over
	return c
}

// StartAt sets how far the upstream's stream has been stored by another bridge.
func (c *Call) StartAt(at Cursor) { c.at, c.resume = at, at }

// ExpectNoAnswer is for a call whose client has its immediate answer, or gets none.
func (c *Call) ExpectNoAnswer() { c.told = true }

// Traced has the call's events continue a trace.
func (c *Call) Traced(in tracing.Context) { c.out.Trace = in }

// Receiver gets the upstream's messages for a call in place of the client. The goroutine that serves the call
// calls its methods.
type Receiver interface {
	// Take takes a message, which is no response unless the call waits for it.
	Take(m rpc.Message, it Item) error
	// Put takes the error that ends a request.
	Put(it Item) error
}

// Tell answers the client, and reports whether this is its first answer.
func (c *Call) Tell(a rpc.Answer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told {
		return false
	}
	if a.Status == http.StatusGatewayTimeout && c.repeatable {
		a = upstream.Busy("the request was not served, and may be made again")
	}
	c.refused, c.told = a.Status >= http.StatusBadRequest, true
	c.Reply <- a
	return true
}

// MayRepeat notes that the client may make its request again: until [Call.Begin], or at any time, if the request
// changes nothing at the MCP server.
func (c *Call) MayRepeat() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.repeatable = true
}

// Begin notes that the MCP server gets the request now, and reports whether it may: not after the client has received
// an answer that lets it make the request again.
func (c *Call) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.repeatable = false
	return !c.refused
}

// Accept reports to the client that the upstream has taken its requests. A client without a session
// receives that report with its first message; see [Session.AnswerOrOpen].
func (c *Call) Accept() {
	if !c.Scope.OneCall {
		c.Tell(rpc.Answer{Status: http.StatusAccepted})
	}
}

// WasAnswered reports whether the client has its immediate answer.
func (c *Call) WasAnswered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told
}

// Cancel notes that the client has cancelled a request: the upstream need not answer it
// any more.
func (c *Call) Cancel(key string) {
	c.cancelOne(key)
	_, all := c.Left()
	c.mu.Lock()
	defer c.mu.Unlock()
	if all && c.idle != nil { // else WithIdleTimer does it
		c.hurry()
	}
}

// hurry ends, soon or at once, the wait for requests that the client has cancelled. The caller holds the lock.
func (c *Call) hurry() {
	if c.CancelAtOnce {
		c.idle.Cancel()
	} else {
		c.idle.Hurry()
	}
}

// Standalone reports whether this is the server's standalone stream, and no call.
func (c *Call) Standalone() bool { return c.Stream == rpc.Standalone }

// Cursor returns how far the upstream's stream has been stored, or is held by this bridge.
func (c *Call) Cursor() Cursor {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// Stored returns how far the upstream's stream has been stored: where the next bridge continues.
func (c *Call) Stored() Cursor {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.Scope.Asking.Load() { // all that has come is stored
		c.resume = c.at
	}
	return c.resume
}

// Moved notes that everything up to an event of the upstream is stored, except the questions of [Scope.Asking]; ""
// is no event.
func (c *Call) Moved(id string) {
	if id == "" || !usable(id) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if id != c.at.ID { // else the upstream sends the messages since that event again
		c.at = Cursor{ID: id, Sequence: max(c.at.Sequence, c.stored)}
	}
}

// Restart forgets the cursor of the upstream's stream: the upstream then replays nothing.
func (c *Call) Restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at.ID, c.resume.ID, c.again = "", "", nil
}

// MaxIDBytes bounds an event ID of the upstream, which is sent in a header field.
const MaxIDBytes = 2 << 10

// usable reports whether an event ID can be sent back in a header field.
func usable(id string) bool {
	return len(id) <= MaxIDBytes && !strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// storedAt notes where the log's last event of the stream is.
func (c *Call) storedAt(sequence uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stored = sequence
}

// PauseIdleTimer stops the limit on the silence of the upstream, which waits for the client.
func (c *Call) PauseIdleTimer() { c.waiting((*upstream.IdleTimer).Came) }

// ResumeIdleTimer resumes the limit that [Call.PauseIdleTimer] has stopped.
func (c *Call) ResumeIdleTimer() { c.waiting((*upstream.IdleTimer).Wait) }

func (c *Call) waiting(do func(*upstream.IdleTimer)) {
	c.mu.Lock()
	p := c.idle
	c.mu.Unlock()
	if p != nil {
		do(p)
	}
}

// Put stores an event. It continues when the session ends, whose close ends it, but not
// when the service does.
func (c *Call) Put(it Item) (uint64, error) {
	if c.To != nil {
		return 0, c.handed(c.To.Put(it))
	}
	return c.Store(it)
}

// Store stores an event, unless the client receives it as its immediate answer.
func (c *Call) Store(it Item) (uint64, error) {
	if done, err := c.Scope.Session.AnswerOrOpen(c, it); done || err != nil {
		return 0, err
	}
	return c.out.Put(c.Scope.Host.Life, it)
}

// WithIdleTimer returns a context that ends once the upstream was silent for CallTimeout; see [upstream.NewIdleTimer].
func (c *Call) WithIdleTimer(ctx context.Context) (context.Context, *upstream.IdleTimer) {
	timeout := time.Duration(c.Scope.Host.Config.CallTimeout)
	if c.Scope.OneCall {
		timeout = 0 // the call ends with its client, and a task with tasks/cancel
	}
	ctx, p := upstream.NewIdleTimer(ctx, timeout, &c.Scope.Host.Pauses)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = p
	if open, cancelled := c.Left(); cancelled && len(open) > 0 {
		c.hurry()
	}
	return ctx, p
}

// NewStandalone returns the call that stores a session's standalone stream, or hands it to another receiver.
func NewStandalone(s *Scope, to Receiver) *Call {
	c := New(s, rpc.Standalone, nil)
	c.Tried = make(chan struct{})
	c.WasTried = sync.OnceFunc(func() { close(c.Tried) })
	c.To = to
	return c
}
