package edge

import (
	"context"
	"errors"
	"time"

	"rejoin/shared/rpc"
)

const (
	// checkEvery is how often the bridge is asked whether it still works on a call.
	checkEvery = 10 * time.Second
	// recheckEvery is how often it is asked once no bridge has listened.
	recheckEvery = 2 * time.Second
	// unheardFor is how long no bridge may listen before a call is given up. One that
	// restarts takes its calls over by then. With the times above the client has its error within
	// 30 s, before the time-outs of clients (60 s in the TypeScript SDK).
	unheardFor = 17 * time.Second
	// maxChecks is how many are asked at a time; others wait for the next turn.
	maxChecks = 64
)

// Due is when the bridge is asked about the call next.
func (m *mcpForm) Due() time.Time { return m.checkAt }

// Tick asks the bridge about a call, unless too many others are being asked about.
func (m *mcpForm) Tick(now time.Time) {
	s := m.service
	every := s.checkEvery
	if !m.unheard.IsZero() {
		every = min(every, recheckEvery)
	}
	m.checkAt = now.Add(every)
	select {
	case s.checks <- struct{}{}:
	default:
		return
	}
	call := rpc.Call{Action: rpc.Check, Session: m.Reader.Place.Session, Stream: m.Reader.Place.Stream}
	s.attached.work.Go(func() {
		defer func() { <-s.checks }()
		ctx, cancel := context.WithTimeout(s.base, takenTimeout)
		defer cancel()
		_, err := call.Do(ctx, s.nc)
		m.Do(func() {
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
	case m.Over():
	case m.unheard.IsZero():
		m.unheard = now
	case now.Sub(m.unheard) < m.service.unheardFor || m.IsAway():
	default:
		m.service.metrics.abandoned.Inc()
		m.lost = true
		m.Finish()
	}
}
