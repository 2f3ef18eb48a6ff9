package bridge

import (
	"context"
	"errors"
	"net/http"

	"rejoin/services/bridge/upstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
)

// endNow ends the session because its client wants that, and waits for its end in the log.
func (h *held) endNow(c rpc.Call) rpc.Answer {
	h.remember(c.Header)
	h.finish(errEnded)
	ctx, cancel := context.WithTimeout(h.service.life, h.service.cfg.closeTimeout())
	defer cancel()
	select {
	case <-h.ended:
		return rpc.Answer{Status: http.StatusNoContent}
	case <-ctx.Done():
		return upstream.Busy("the session cannot be closed now")
	}
}

// check sees to it that a stream gets its response, or an error.
func (h *held) check(c rpc.Call) rpc.Answer {
	accepted := rpc.Answer{Status: http.StatusAccepted}
	ids, _ := rpc.RequestIDs(c.Stream)
	if h.call(c.Stream) != nil || len(ids) == 0 {
		return accepted
	}
	s := h.service
	ctx, cancel := context.WithTimeout(s.life, s.cfg.closeTimeout())
	defer cancel()
	lost := newCall(h, c.Stream, ids)
	final, err := lost.hasFinal(ctx)
	if err != nil {
		return upstream.Busy("the log cannot be read now")
	}
	if final {
		return accepted
	}
	if _, err := lost.recallOnce(ctx); err != nil { // some of a batch may be answered
		return upstream.Busy("the log cannot be read now")
	}
	// Checks of two edges may come at once.
	lost.out.nonce = "check"
	lost.fail(rpc.CodeInternal, "the request was lost", failUnknown)
	return accepted
}

// hasFinal reports whether the log has the last event of a call's stream, or its end.
func (c *call) hasFinal(ctx context.Context) (bool, error) {
	if ended, err := c.hasEnd(ctx); ended || err != nil {
		return ended, err
	}
	l, at := c.held.service.backend.Log, c.subject()
	sequence, err := l.Last(ctx, at)
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	e, err := l.At(ctx, at.Partition, sequence)
	return err == nil && e.Final, err
}

// hasEnd reports whether a call's stream was ended without a last event: its client has
// cancelled it.
func (c *call) hasEnd(ctx context.Context) (bool, error) {
	end := c.subject()
	end.Kind = event.End
	_, err := c.held.service.backend.Log.Last(ctx, end)
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// subject is where the stream's events are in the log.
func (c *call) subject() event.Subject {
	h := c.held
	return event.Subject{Partition: h.service.backend.Log.Partition(h.name), Session: h.name, Life: h.life, Stream: c.stream}
}

// ended says that the session is over.
func ended() rpc.Answer {
	return upstream.Failure(http.StatusNotFound, rpc.CodeInvalid, errEnded.Error())
}
