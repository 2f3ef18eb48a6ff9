package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// errUnknownRequest is why a response without an open request is left out.
var errUnknownRequest = errors.New("it is about a request that is over")

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
	c.session.host.noteChange(m) // before the client can learn of it
	if c.to == nil && c.repeated(it.data) {
		c.session.host.metrics.messages.WithLabelValues(resultDuplicate).Inc()
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
	c.session.host.metrics.failures.WithLabelValues(failTooLarge).Inc()
	return rpc.ErrorMessage(id, rpc.CodeInternal, c.session.host.tooLarge(c.session.name), nil)
}

// respond stores a response as the stream's last event, or the error of one that is too large.
func (c *call) respond(id json.RawMessage, data []byte) {
	_, err := c.store(item{data: data, final: true})
	if errors.Is(err, upstream.ErrTooLarge) {
		_, err = c.store(item{data: c.tooLarge(id), final: true})
	}
	if err != nil {
		c.session.host.log.Debug("the response of a call is not stored", "session", c.session.name, "stream", c.stream, "error", err)
	}
}

// drop notes that a message is not stored.
func (c *call) drop(reason string, err error) {
	c.session.host.metrics.dropped.WithLabelValues(reason).Inc()
	c.session.host.log.Warn("a message of the MCP server is left out", "session", c.session.name, "stream", c.stream, "reason", err)
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
		c.fail(rpc.CodeInternal, c.session.host.tooLarge(c.session.name), failTooLarge)
	case errors.Is(why, upstream.ErrExited):
		c.fail(rpc.CodeInternal, upstream.ErrExited.Error(), failLost)
	case errors.Is(why, upstream.ErrGone), errors.Is(why, upstream.ErrNoStream), errors.Is(why, upstream.ErrCancelled):
		c.fail(rpc.CodeInternal, upstream.ErrUnanswered.Error(), failLost)
	default:
		c.session.host.log.Warn("a request has lost its MCP server", "session", c.session.name, "stream", c.stream, "error", why)
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
	c.session.host.metrics.failures.WithLabelValues(reason).Inc()
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
	s := c.session.host
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

// lose ends a call that no bridge works on. The checks of two edges store one event.
func (c *call) lose() {
	c.out.nonce = "check"
	c.fail(rpc.CodeInternal, "the request was lost", failUnknown)
}
