package bridge

import (
	"context"
	"errors"
	"net/http"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
)

// endNow ends the session because its client wants that. It returns when nothing is
// taken for it any more; the rest of the close takes a while.
func (h *held) endNow(c rpc.Call) rpc.Answer {
	h.remember(c.Header)
	h.finish(errEnded)
	ctx, cancel := context.WithTimeout(h.service.life, h.service.cfg.closeTimeout())
	defer cancel()
	select {
	case <-h.closing:
		return rpc.Answer{Status: http.StatusNoContent}
	case <-ctx.Done():
		return busy("the session cannot be closed now")
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
	final, err := s.hasFinal(ctx, h.name, c.Stream)
	if err != nil {
		return busy("the log cannot be read now")
	}
	if final {
		return accepted
	}
	lost := newCall(h, c.Stream, ids)
	if _, err := lost.recallOnce(ctx); err != nil { // some of a batch may be answered
		return busy("the log cannot be read now")
	}
	// Checks of two edges may come at once.
	lost.out.nonce = "check"
	lost.fail(rpc.CodeInternal, "the request was lost", failUnknown)
	return accepted
}

// hasFinal reports whether the log has the last event of a stream.
func (s *Service) hasFinal(ctx context.Context, session, stream string) (bool, error) {
	p := s.backend.Log.Partition(session)
	sequence, err := s.backend.Log.Last(ctx, event.Subject{Partition: p, Session: session, Stream: stream})
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	e, err := s.backend.Log.At(ctx, p, sequence)
	return err == nil && e.Final, err
}
