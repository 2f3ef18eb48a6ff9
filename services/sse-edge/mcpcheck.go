package edge

import (
	"context"
	"errors"
	"time"

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

// due is when the bridge is asked about the call next.
func (m *mcpForm) due() time.Time { return m.checkAt }

// tick asks the bridge about a call, unless too many others are being asked about.
func (m *mcpForm) tick(now time.Time) {
	s := m.service
	m.checkAt = now.Add(s.checkEvery)
	select {
	case s.checks <- struct{}{}:
	default:
		return
	}
	call := rpc.Call{Action: rpc.Check, Session: m.reader.Place.Session, Stream: m.reader.Place.Stream}
	s.attached.work.Go(func() {
		defer func() { <-s.checks }()
		ctx, cancel := context.WithTimeout(s.base, takenTimeout)
		defer cancel()
		_, err := call.Do(ctx, s.nc)
		m.do(func() {
			if errors.Is(err, rpc.ErrNobody) {
				m.noBridge(time.Now())
			} else {
				m.unheard = time.Time{}
			}
		})
	})
}

// noBridge gives the call up when no bridge has listened for long.
func (m *mcpForm) noBridge(now time.Time) {
	switch {
	case m.over():
	case m.unheard.IsZero():
		m.unheard = now
	case now.Sub(m.unheard) < m.service.unheardFor || m.phase.away():
	default:
		m.service.metrics.abandoned.Inc()
		m.lost = true
		m.finish()
	}
}
