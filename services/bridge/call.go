package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// openRequest is a request that has no response yet.
type openRequest struct {
	id        json.RawMessage // the client's
	sent      json.RawMessage // what the upstream has
	key       string          // its [upstream.IDKey]
	cancelled bool
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
	session *clientSession
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
	open    []openRequest
	told    bool
	at      cursor
	stored  uint64              // the sequence of the log's last event
	again   [][]byte            // what the log had after position at when the call was taken over
	reading *upstream.IdleTimer // nil while nothing is waited for
}

func newCall(h *clientSession, stream string, ids []json.RawMessage) *call {
	c := &call{
		session: h, stream: stream, began: time.Now(), out: newWriter(h.service, h.name, h.life, stream),
		reply: make(chan rpc.Answer, 1),
	}
	c.out.over = h.over
	for _, id := range ids {
		c.open = append(c.open, openRequest{id: id, sent: id, key: upstream.IDKey(id)})
	}
	return c
}

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
	if c.session.onDemand == nil {
		c.tell(rpc.Answer{Status: http.StatusAccepted})
	}
}

// wasAnswered reports whether the client has its immediate answer.
func (c *call) wasAnswered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told
}

// ids returns the client's IDs of the open requests.
func (c *call) ids() []json.RawMessage {
	open, _ := c.left()
	ids := make([]json.RawMessage, len(open))
	for i, r := range open {
		ids[i] = r.id
	}
	return ids
}

// answered notes that the response to a request is stored.
func (c *call) answered(id []byte) {
	c.answeredKey(upstream.IDKey(id))
}

// answeredTo is answered for the ID that the client has given.
func (c *call) answeredTo(id []byte) {
	key := upstream.IDKey(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = slices.DeleteFunc(c.open, func(r openRequest) bool { return upstream.IDKey(r.id) == key })
}

// answeredKey is answered for the [upstream.IDKey] of what the upstream has.
func (c *call) answeredKey(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, a := range c.open {
		if a.key == key {
			c.open = append(c.open[:i:i], c.open[i+1:]...)
			return
		}
	}
}

// waitsFor reports whether the response to this request is missing.
func (c *call) waitsFor(id []byte) bool {
	key := upstream.IDKey(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.open, func(a openRequest) bool { return a.key == key })
}

// last reports whether only the response to this request is missing.
func (c *call) last(id []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) == 1 && c.open[0].key == upstream.IDKey(id)
}

// only returns the ID that the upstream has of the one request that has no response; nil for none, and
// for several.
func (c *call) only() json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) != 1 {
		return nil
	}
	return c.open[0].sent
}

// cancel notes that the client has cancelled a request: the upstream need not answer it
// any more.
func (c *call) cancel(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := true
	for i := range c.open {
		if c.open[i].key == key {
			c.open[i].cancelled = true
		}
		all = all && c.open[i].cancelled
	}
	if all && c.reading != nil {
		c.reading.Hurry()
	}
}

// left returns the requests without a response, and whether the client has cancelled
// all of them.
func (c *call) left() (open []openRequest, cancelled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cancelled = true
	for _, a := range c.open {
		cancelled = cancelled && a.cancelled
	}
	return slices.Clone(c.open), cancelled
}

// standalone reports whether this is no call, but what the server sends of itself.
func (c *call) standalone() bool { return c.stream == rpc.Standalone }

func (c *call) done() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) == 0
}

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

// take stores a message of the upstream. Errors are those of [writer.put], but not
// [upstream.ErrTooLarge].
func (c *call) take(it item) error {
	m, err := rpc.ParseMessage(it.data)
	if err != nil {
		c.drop(dropInvalid, err)
		return nil
	}
	if id := c.only(); m.Error != nil && string(m.ID) == "null" && id != nil {
		// A server that cannot read a request gives its error no ID (JSON-RPC 2.0, section 5).
		m.ID, it.data = id, translate.WithID(it.data, id)
	}
	c.session.service.noteChange(m) // before the client can learn of it
	if c.to == nil && c.repeated(it.data) {
		c.session.service.metrics.messages.WithLabelValues(resultDuplicate).Inc()
		return nil
	}
	if m.IsResponse() && !c.standalone() && string(m.ID) != "null" && !c.waitsFor(m.ID) {
		c.drop(dropLate, errUnknownRequest)
		return nil
	}
	if m.IsResponse() && c.waitsFor(m.ID) {
		if it.data, err = c.session.noteTasks(m, it.data); err != nil {
			return err
		}
		if c.keep != nil {
			c.keep(m.Result)
		}
	}
	if c.to != nil {
		if err = c.to.take(m, it); err == nil && m.IsResponse() {
			c.answered(m.ID)
		}
		return err
	}
	it.final = m.IsResponse() && c.last(m.ID)
	sequence, err := c.put(it)
	if errors.Is(err, upstream.ErrTooLarge) {
		if !m.IsResponse() {
			c.drop(dropTooLarge, err)
			return nil
		}
		it.data = c.tooLarge(m.ID)
		sequence, err = c.put(it)
	}
	if err != nil {
		return err
	}
	if m.IsResponse() {
		c.answered(m.ID)
	}
	c.storedAt(sequence)
	return nil
}

// storeOrDrop stores a message that the client can do without: one that is too large is dropped. Errors are
// those of [call.store], but not [upstream.ErrTooLarge].
func (c *call) storeOrDrop(it item) error {
	sequence, err := c.store(it)
	if errors.Is(err, upstream.ErrTooLarge) {
		c.drop(dropTooLarge, err)
		return nil
	}
	if err == nil {
		c.storedAt(sequence)
	}
	return err
}

// tooLarge counts a response that is too large, and returns the error that the client receives instead.
func (c *call) tooLarge(id json.RawMessage) []byte {
	c.session.service.metrics.failures.WithLabelValues(failTooLarge).Inc()
	return rpc.ErrorMessage(id, rpc.CodeInternal, c.session.service.tooLarge(c.session.name), nil)
}

// respond stores a response as the stream's last event, or the error of one that is too large.
func (c *call) respond(id json.RawMessage, data []byte) {
	_, err := c.store(item{data: data, final: true})
	if errors.Is(err, upstream.ErrTooLarge) {
		_, err = c.store(item{data: c.tooLarge(id), final: true})
	}
	if err != nil {
		c.session.service.log.Debug("the response of a call is not stored", "session", c.session.name, "stream", c.stream, "error", err)
	}
}

// storedAt notes where the log's last event of the stream is.
func (c *call) storedAt(sequence uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stored = sequence
}

// sentAs notes the ID that the upstream has of the one request.
func (c *call) sentAs(id json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[0].sent, c.open[0].key = id, upstream.IDKey(id)
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
	return c.out.put(c.session.service.life, it)
}

// drop notes that a message is not stored.
func (c *call) drop(reason string, err error) {
	c.session.service.metrics.dropped.WithLabelValues(reason).Inc()
	c.session.service.log.Warn("a message of the MCP server is left out", "session", c.session.name, "stream", c.stream, "reason", err)
}

// over ends a call that nothing is waited for any more. why is nil when all is answered.
func (c *call) over(why error) {
	switch {
	case why == nil, errors.Is(why, errClosed):
	case errors.Is(why, upstream.ErrStopping):
		c.accept() // the upstream may have it; the next bridge will see to it
		c.tell(upstream.Busy(upstream.ErrStopping.Error()))
	case errors.Is(why, errEnded):
		c.tell(ended())
	case errors.Is(why, upstream.ErrTimeout):
		c.fail(upstream.CodeTimeout, upstream.ErrTimeout.Error(), failTimeout)
	case errors.Is(why, upstream.ErrTooLarge):
		c.fail(rpc.CodeInternal, c.session.service.tooLarge(c.session.name), failTooLarge)
	case errors.Is(why, upstream.ErrExited):
		c.fail(rpc.CodeInternal, upstream.ErrExited.Error(), failLost)
	case errors.Is(why, upstream.ErrGone), errors.Is(why, upstream.ErrNoStream), errors.Is(why, upstream.ErrCancelled):
		c.fail(rpc.CodeInternal, upstream.ErrUnanswered.Error(), failLost)
	default:
		c.session.service.log.Warn("a request has lost its MCP server", "session", c.session.name, "stream", c.stream, "error", why)
		c.fail(rpc.CodeInternal, upstream.ErrUnanswered.Error(), failLost)
	}
}

// fail ends a call whose upstream will not answer any more: with an error for each open
// request, or, when the client has cancelled all of them, without.
func (c *call) fail(code int, text, reason string) {
	c.accept()
	open, cancelled := c.left()
	if len(open) == 0 {
		return
	}
	if cancelled {
		c.close()
		return
	}
	c.session.service.metrics.failures.WithLabelValues(reason).Inc()
	for i, r := range open {
		data := rpc.ErrorMessage(r.id, code, text, nil)
		if _, err := c.put(item{data: data, final: i == len(open)-1}); err != nil {
			return // the stream is closed, or another bridge will see to it
		}
		c.answeredKey(r.key)
	}
}

// close ends the stream in the log without a message. Nothing may be put after it: the
// events of a call have their fence on the session's seal, not on the stream's end.
func (c *call) close() {
	s := c.session.service
	if c.to != nil || !c.session.inLog() {
		return
	}
	ctx, cancel := context.WithTimeout(s.life, s.cfg.CloseTimeout())
	defer cancel()
	if err := s.backend.Log.EndStream(ctx, c.session.name, c.session.life, c.stream); err != nil {
		s.log.Warn("the stream of a cancelled request is not ended", "session", c.session.name, "stream", c.stream, "error", err)
	}
}

// refuse ends a call that the upstream has not taken: the client gets an answer at once, or, when
// that is too late, in the stream.
func (c *call) refuse(a rpc.Answer) {
	if c.refuseAs != nil {
		a = c.refuseAs(a)
	}
	if c.tell(upstream.About(a, c.ids())) {
		return
	}
	code, text := rpc.CodeInternal, fmt.Sprintf("the MCP server refused the request: %d %s", a.Status, http.StatusText(a.Status))
	if m, err := rpc.ParseMessage(a.Data); err == nil && m.Error != nil {
		var e struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		}
		if rpc.Unmarshal(m.Error, &e) == nil {
			code, text = e.Code, e.Message
		}
	}
	c.fail(code, text, failRefused)
}

// wait begins to wait for the upstream, for CallTimeout; see [upstream.NewIdleTimer].
func (c *call) wait(ctx context.Context) (context.Context, *upstream.IdleTimer) {
	timeout := time.Duration(c.session.service.cfg.CallTimeout)
	if c.session.onDemand != nil {
		timeout = 0 // the call ends with its client, and a task with tasks/cancel
	}
	ctx, p := upstream.NewIdleTimer(ctx, timeout)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = p
	return ctx, p
}

// newStandalone returns what stores a session's standalone stream, or hands it to another receiver.
func newStandalone(h *clientSession, to receiver) *call {
	c := newCall(h, rpc.Standalone, nil)
	c.tried = make(chan struct{})
	c.to = to
	return c
}

// wasTried notes that the upstream has answered a request for its standalone stream, or will not.
func (c *call) wasTried() { c.triedOnce.Do(func() { close(c.tried) }) }

// repeated reports whether a message is one that the log had when the call was taken over.
func (c *call) repeated(data []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, has := range c.again {
		if bytes.Equal(has, data) {
			c.again = c.again[i+1:]
			return true
		}
	}
	return false
}
