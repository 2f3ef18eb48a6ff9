package call

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// ErrUnknownRequest is why a response without an open request is left out.
var ErrUnknownRequest = errors.New("it is about a request that is over")

// Take hands a message of the upstream to c.To, if there is one, or stores it. Errors are those of [Writer.Put], but not
// [upstream.ErrTooLarge].
func (c *Call) Take(it Item) error {
	m, err := rpc.ParseMessage(it.Data)
	if err != nil {
		c.Drop(host.DropInvalid, err)
		return nil
	}
	if id := c.only(); id != nil {
		m, it.Data = translate.OwnError(m, it.Data, id)
	}
	c.Scope.Host.NoteChange(m) // before the client can learn of it
	if it.After && translate.IsChange(m) {
		it.ID, it.After = "", false // the same notification may be a new one, and does no harm twice
	}
	if c.To == nil && c.Repeated(it) {
		c.Scope.Host.Metrics.Messages.WithLabelValues(host.ResultDuplicate).Inc()
		return nil
	}
	waits := m.IsResponse() && c.waitsFor(m.ID)
	if m.IsResponse() && !waits && (c.To != nil || !c.Standalone() && string(m.ID) != "null") {
		c.Drop(host.DropLate, ErrUnknownRequest)
		return nil
	}
	if waits {
		if it.Data, err = c.Scope.Session.NoteTasks(m, it.Data); err != nil {
			return err
		}
		if c.Rewrite != nil {
			it.Data = c.Rewrite(m, it.Data)
		}
	}
	if c.To != nil {
		c.Stored() // the next bridge continues before a question that comes now, and after one that is stored
		err = c.To.Take(m, it)
		if m.IsResponse() {
			if err = c.handed(err); err == nil {
				c.Answered(m.ID)
			}
		}
		return err
	}
	if !m.IsResponse() {
		return c.StoreOrDrop(it)
	}
	it.Final = waits && c.only() != nil
	sequence, err := c.putResponse(m.ID, it)
	if err == nil {
		c.Answered(m.ID)
		c.storedAt(sequence)
	}
	return err
}

// handed returns the error with which c.To has taken the end of a request, or the cause of the service's end: then it
// is unknown whether the end of the request is stored, and the next bridge looks.
func (c *Call) handed(err error) error {
	if err == nil {
		err = context.Cause(c.Scope.Host.Life)
	}
	return err
}

// StoreOrDrop stores a message that the client can do without: one that is too large is dropped. Errors are
// those of [Call.Store], but not [upstream.ErrTooLarge].
func (c *Call) StoreOrDrop(it Item) error {
	sequence, err := c.Store(it)
	if errors.Is(err, upstream.ErrTooLarge) {
		c.Drop(host.DropTooLarge, err)
		return nil
	}
	if err == nil {
		c.storedAt(sequence)
	}
	return err
}

// tooLarge counts a response that is too large, and returns the error that the client receives instead.
func (c *Call) tooLarge(id json.RawMessage) []byte {
	c.Scope.Host.Metrics.Failures.WithLabelValues(host.FailTooLarge).Inc()
	return rpc.ErrorMessage(id, rpc.CodeInternal, c.Scope.Host.TooLarge(c.Scope.Name), nil)
}

// putResponse stores a response, or the error of one that is too large.
func (c *Call) putResponse(id json.RawMessage, it Item) (sequence uint64, err error) {
	sequence, err = c.Put(it)
	if errors.Is(err, upstream.ErrTooLarge) {
		it.Data = c.tooLarge(id)
		sequence, err = c.Put(it)
	}
	return sequence, err
}

// Respond stores the response to the one request as the stream's last event, or the error of one that is too large. It
// reports whether the response is not too large.
func (c *Call) Respond(response []byte) (fits bool) {
	ids := c.IDs()
	if len(ids) == 0 {
		return true
	}
	id := ids[0]
	_, err := c.Store(Item{Data: translate.WithID(response, id), Final: true})
	if fits = !errors.Is(err, upstream.ErrTooLarge); !fits {
		_, err = c.Store(Item{Data: c.tooLarge(id), Final: true})
	}
	if err != nil {
		c.Scope.Host.Logger.Debug("the response of a call is not stored", "session", c.Scope.Name, "stream", c.Stream, "error", err)
	}
	return fits
}

// Drop notes that a message is not stored.
func (c *Call) Drop(reason string, err error) {
	c.Scope.Host.Metrics.Dropped.WithLabelValues(reason).Inc()
	c.Scope.Host.Trouble("dropped: "+reason, "a message of the MCP server is left out",
		slog.String("session", c.Scope.Name), slog.String("stream", c.Stream), slog.Any("reason", err))
}

// End ends a call that waits for nothing more. why is nil when all requests are answered.
func (c *Call) End(why error) {
	switch {
	case why == nil, errors.Is(why, ErrClosed):
	case errors.Is(why, upstream.ErrStopping):
		c.Accept() // the next bridge continues or ends it
		c.Tell(upstream.OutcomeUnknown(upstream.ErrStopping.Error() + ", and the MCP server may have begun the request"))
	case errors.Is(why, host.ErrEnded):
		c.Tell(host.Ended())
	case errors.Is(why, upstream.ErrTimeout):
		c.fail(upstream.CodeTimeout, upstream.ErrTimeout.Error(), host.FailTimeout)
	case errors.Is(why, upstream.ErrTooLarge):
		c.fail(rpc.CodeInternal, c.Scope.Host.TooLarge(c.Scope.Name), host.FailTooLarge)
	case errors.Is(why, upstream.ErrExited), errors.Is(why, upstream.ErrRestarted):
		c.fail(rpc.CodeInternal, why.Error(), host.FailLost)
	case errors.Is(why, upstream.ErrGone), errors.Is(why, upstream.ErrNoStream), errors.Is(why, upstream.ErrCancelled):
		c.fail(rpc.CodeInternal, upstream.ErrUnanswered.Error(), host.FailLost)
	default:
		c.Scope.Host.Logger.Warn("a request has lost its MCP server", "session", c.Scope.Name, "stream", c.Stream, "error", why)
		c.fail(rpc.CodeInternal, upstream.ErrUnanswered.Error(), host.FailLost)
	}
}

// fail is failWith for an error without data.
func (c *Call) fail(code int, text, reason string) {
	c.failWith(translate.Failure{Code: code, Message: text}, reason)
}

// failWith ends a call whose upstream will not answer any more: with an error for each open
// request, or, when the client has cancelled all of them, without.
func (c *Call) failWith(f translate.Failure, reason string) {
	c.Accept()
	open, cancelled := c.Left()
	if len(open) == 0 {
		return
	}
	if cancelled {
		c.close()
		return
	}
	c.Scope.Host.Metrics.Failures.WithLabelValues(reason).Inc()
	var data any // nil for none
	if f.Data != nil {
		data = f.Data
	}
	for i, r := range open {
		it := Item{Data: rpc.ErrorMessage(r.ID, f.Code, f.Message, data), Final: i == len(open)-1}
		if _, err := c.putResponse(r.ID, it); err != nil {
			return // the stream is closed, or another bridge handles the call
		}
		c.Answered(r.Sent)
	}
}

// close ends the stream in the log without a message. Nothing may be put after it: the
// events of a call have their fence on the session's seal, not on the stream's end.
func (c *Call) close() {
	s := c.Scope.Host
	if c.To != nil || !c.Scope.Session.InLog() {
		return
	}
	ctx, cancel := context.WithTimeout(s.Life, s.Config.CloseTimeout())
	defer cancel()
	err := s.Confirm(ctx)
	if err == nil {
		err = s.Backend.Log.EndStream(ctx, c.Scope.Name, c.Scope.Life, c.Stream)
	}
	if err != nil {
		s.Logger.Warn("the stream of a cancelled request is not ended", "session", c.Scope.Name, "stream", c.Stream, "error", err)
	}
}

// Refuse ends a call that the upstream has not taken: the client gets an answer at once, or, when
// that is too late, in the stream.
func (c *Call) Refuse(a rpc.Answer) {
	if c.RefuseAs != nil {
		a = c.RefuseAs(a)
	}
	if c.Tell(a) {
		return
	}
	f := translate.Failure{Code: rpc.CodeInternal, Message: fmt.Sprintf("the MCP server refused the request: %d %s", a.Status, http.StatusText(a.Status))}
	if m, err := rpc.ParseMessage(a.Data); err == nil && m.Error != nil {
		var e translate.Failure
		if rpc.Unmarshal(m.Error, &e) == nil {
			f = e
		}
	}
	c.failWith(f, host.FailRefused)
}

// Lose ends a call that no bridge works on. The checks of two edges store one event for each request.
func (c *Call) Lose() {
	all, _ := rpc.RequestIDs(c.Stream)
	c.out.nonce, c.out.index = "check", uint64(len(all)-len(c.IDs())) //nolint:gosec // not negative
	c.fail(rpc.CodeInternal, "the request was lost", host.FailUnknown)
}
