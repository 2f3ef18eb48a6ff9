package edge

import (
	"context"
	"errors"
	"time"

	"rejoin/services/sse-edge/cursor"

	"rejoin/shared/rpc"
)

const (
	// checkEvery is how often the bridge is asked whether it still works on a call.
	checkEvery = 15 * time.Second
	// unheardFor is how long no bridge may listen before a call is given up. One that
	// restarts takes its calls over by then.
	unheardFor = time.Minute
	// maxChecks is how many are asked at a time; others wait for the next turn.
	maxChecks = 64
)

// checkDue reports whether the bridge is to be asked.
func (st *stream) checkDue(now time.Time) bool {
	return st.mcp != nil && !st.mcp.checkAt.IsZero() && !st.mcp.checkAt.After(now)
}

// check asks the bridge about a call that a client waits for. A bridge that does not
// know of it ends its stream, with an error.
func (w *worker) check(st *stream, now time.Time) {
	s := w.service
	st.mcp.checkAt = now.Add(s.checkEvery)
	select {
	case s.checks <- struct{}{}:
	default:
		return
	}
	call := rpc.Call{Action: rpc.Check, Session: st.reader.Place.Session, Stream: st.reader.Place.Stream}
	s.attached.work.Go(func() {
		defer func() { <-s.checks }()
		ctx, cancel := context.WithTimeout(s.base, takenTimeout)
		defer cancel()
		what := newsHeard
		if _, err := call.Do(ctx, s.nc); errors.Is(err, rpc.ErrNobody) {
			what = newsUnheard
		}
		w.post(st, what)
	})
}

// unheard notes that no bridge listens, and gives a call up for which none has for long.
// That is between the edge and this client: a bridge that comes later says more.
func (w *worker) unheard(st *stream, now time.Time) {
	switch {
	case st.over:
	case st.mcp.unheard.IsZero():
		st.mcp.unheard = now
	case now.Sub(st.mcp.unheard) < w.service.unheardFor || st.away:
	default:
		w.service.metrics.abandoned.Inc()
		st.mcp.lost = true
		w.tell(st, cursor.Step{Ended: true})
	}
}
