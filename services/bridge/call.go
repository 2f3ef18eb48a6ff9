package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
	"rejoin/shared/tracing"
)

// callSession is what calls, and the MCP server's side of a session, know of the session. It is safe for
// concurrent use.
type callSession struct {
	clientSide
	host     *host
	name     string
	life     string
	onDemand bool            // it has one call, and is in the log when there is something to store
	ctx      context.Context //nolint:containedctx // of all that is done for the session
	over     chan struct{}   // closed when the session has ended, and its streams with it

	end context.CancelCauseFunc

	mu      sync.Mutex
	work    sync.WaitGroup // of calls and listen; grows only until ending
	ending  bool
	outside receiver // gets what is about no call, in place of the client; nil for none
}

// clientSide is the client's side of a session.
type clientSide interface {
	// finish ends the session. It returns at once, and does nothing the second time.
	finish(cause error)
	// answerOrOpen is called before an event of a call is stored, and reports whether the client has
	// got it as its answer instead. Errors are [errClosed] and [upstream.ErrTooLarge].
	answerOrOpen(c *call, it item) (told bool, err error)
	// noteTasks takes a response of the MCP server, and returns what the client gets of it.
	noteTasks(m rpc.Message, data []byte) ([]byte, error)
	// inLog reports whether the session is in the log.
	inLog() bool
	// isTask reports whether the session's call is a task.
	isTask() bool
}

// newCallSession returns a session in the log, whose client's side is side.
func newCallSession(h *host, name, life string, side clientSide) *callSession {
	s := &callSession{host: h, name: name, life: life, clientSide: side, over: make(chan struct{})}
	s.ctx, s.end = context.WithCancelCause(h.life)
	return s
}

// run runs what belongs to the session, unless it has ended.
func (s *callSession) run(work func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return false
	}
	s.work.Add(1)
	ok := s.host.run(func() {
		defer s.work.Done()
		work()
	})
	if !ok {
		s.work.Done()
	}
	return ok
}

// stop has nothing run any more and ends what runs, once: the result is false the second time. With
// [errEnded] the streams end as well.
func (s *callSession) stop(cause error) bool {
	s.mu.Lock()
	first := !s.ending
	s.ending = true
	s.mu.Unlock()
	if !first {
		return false
	}
	if errors.Is(cause, errEnded) {
		close(s.over)
	}
	s.end(cause)
	return true
}

// wait waits for what runs, after stop.
func (s *callSession) wait() { s.work.Wait() }

// hasEnded reports whether stop was called.
func (s *callSession) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// setReceiver makes another receiver than the client get what is about no call.
func (s *callSession) setReceiver(to receiver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outside = to
}

// receiver returns who gets what is about no call, in place of the client; nil for none.
func (s *callSession) receiver() receiver {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outside
}

// cursor is how far an upstream's stream has been stored.
type cursor struct {
	// ID is the upstream's last event ID; empty when it gives none.
	ID string
	// Sequence is that of the log's last event at that time.
	Sequence uint64
}

// call is a body of requests whose responses go to one stream. One goroutine serves it,
// and calls take, moved, fail and leave; the rest is safe for concurrent use.
type call struct {
	*requests
	session *callSession
	stream  string
	began   time.Time
	out     *writer
	reply   chan rpc.Answer              // holds the client's immediate answer
	to      receiver                     // nil: the client gets what the upstream sends
	keep    func(result json.RawMessage) // gets the MCP server's result; nil for none
	// refuseAs says what a client gets whose request the upstream refused; nil: the same.
	refuseAs func(rpc.Answer) rpc.Answer

	tried     chan struct{} // of a standalone stream; see wasTried
	triedOnce sync.Once

	mu      sync.Mutex
	told    bool
	at      cursor
	stored  uint64              // the sequence of the log's last event
	again   [][]byte            // what the log had after position at when the call was taken over
	reading *upstream.IdleTimer // nil while nothing is waited for
}

func newCall(s *callSession, stream string, ids []json.RawMessage) *call {
	c := &call{
		requests: newRequests(ids), session: s, stream: stream, began: time.Now(),
		out: newWriter(s.host, s.name, s.life, stream), reply: make(chan rpc.Answer, 1),
	}
	c.out.over = s.over
	return c
}

// startAt sets how far the upstream's stream has been stored by another bridge.
func (c *call) startAt(at cursor) { c.at = at }

// expectNoAnswer is for a call whose client has its immediate answer, or gets none.
func (c *call) expectNoAnswer() { c.told = true }

// traced has the call's events continue a trace.
func (c *call) traced(in tracing.Context) { c.out.trace = in }

// receiver gets what the upstream sends for a call in place of the client. Its methods are called
// by who serves the call.
type receiver interface {
	// take takes a message, which is no response unless the call waits for it.
	take(m rpc.Message, it item) error
	// put takes the error that ends a request.
	put(it item) error
}

// tell answers the client, and reports whether it had not been answered before.
func (c *call) tell(a rpc.Answer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told {
		return false
	}
	c.told = true
	c.reply <- a
	return true
}

// accept tells the client that the upstream has taken its requests. A client without a session
// hears of that with the first message for it; see [clientSession.answerOrOpen].
func (c *call) accept() {
	if !c.session.onDemand {
		c.tell(rpc.Answer{Status: http.StatusAccepted})
	}
}

// wasAnswered reports whether the client has its immediate answer.
func (c *call) wasAnswered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told
}

// cancel notes that the client has cancelled a request: the upstream need not answer it
// any more.
func (c *call) cancel(key string) {
	if !c.requests.cancel(key) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reading != nil {
		c.reading.Hurry()
	}
}

// standalone reports whether this is no call, but what the server sends of itself.
func (c *call) standalone() bool { return c.stream == rpc.Standalone }

// cursor returns how far the upstream's stream has been stored.
func (c *call) cursor() cursor {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// moved notes that everything up to an event of the upstream is stored; "" is no event.
func (c *call) moved(id string) {
	if id == "" || !usable(id) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = cursor{ID: id, Sequence: max(c.at.Sequence, c.stored)}
}

// restart forgets how far the upstream's stream has been stored.
func (c *call) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at.ID = ""
}

// maxIDBytes bounds an event ID of the upstream, which goes into a header field.
const maxIDBytes = 2 << 10

// usable reports whether an event ID can be sent back in a header field.
func usable(id string) bool {
	return len(id) <= maxIDBytes && !strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// storedAt notes where the log's last event of the stream is.
func (c *call) storedAt(sequence uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stored = sequence
}

// pause stops the time that the upstream may be without a message, since it waits for the client;
// unpause lets it go on.
func (c *call) pause() { c.waiting((*upstream.IdleTimer).Came) }

func (c *call) unpause() { c.waiting((*upstream.IdleTimer).Wait) }

func (c *call) waiting(do func(*upstream.IdleTimer)) {
	c.mu.Lock()
	p := c.reading
	c.mu.Unlock()
	if p != nil {
		do(p)
	}
}

// put stores an event. It continues when the session ends, whose close ends it, but not
// when the service does.
func (c *call) put(it item) (uint64, error) {
	if c.to != nil {
		return 0, c.to.put(it)
	}
	return c.store(it)
}

// store stores an event, unless it is answered at once.
func (c *call) store(it item) (uint64, error) {
	if told, err := c.session.answerOrOpen(c, it); told || err != nil {
		return 0, err
	}
	return c.out.put(c.session.host.life, it)
}

// wait begins to wait for the upstream, for CallTimeout; see [upstream.NewIdleTimer].
func (c *call) wait(ctx context.Context) (context.Context, *upstream.IdleTimer) {
	timeout := time.Duration(c.session.host.cfg.CallTimeout)
	if c.session.onDemand {
		timeout = 0 // the call ends with its client, and a task with tasks/cancel
	}
	ctx, p := upstream.NewIdleTimer(ctx, timeout)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = p
	return ctx, p
}

// newStandalone returns what stores a session's standalone stream, or hands it to another receiver.
func newStandalone(s *callSession, to receiver) *call {
	c := newCall(s, rpc.Standalone, nil)
	c.tried = make(chan struct{})
	c.to = to
	return c
}

// wasTried notes that the upstream has answered a request for its standalone stream, or will not.
func (c *call) wasTried() { c.triedOnce.Do(func() { close(c.tried) }) }
