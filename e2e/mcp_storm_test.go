package e2e

import (
	"fmt"
	"testing"

	mcprev "rejoin/shared/mcp"
	"rejoin/shared/waittest"
)

// Many sessions, each with a call that reports its steps, while one of two edges is
// killed and comes back, and then the bridge loses NATS: no call is lost, and no message
// comes twice.
func TestMCP_EdgeOrNATSIsKilledDuringCalls(t *testing.T) {
	t.Parallel()
	const sessions, steps = 60, 50
	s := startMCP(t)
	edge, another := s.edge(t, anyPort), s.edge(t, anyPort)
	way := newBalancer(t, edge.host(), another.host())
	calls := make([]*mcpCall, sessions)
	for i := range calls {
		calls[i] = callWithGo(t, way.mcp(), []string{revisionSessions, mcprev.Modern}[i%2], counting{Call: fmt.Sprint(i), Gate: "all", Steps: steps})
	}
	all := func(step int) {
		t.Helper()
		for _, call := range calls {
			call.waitFor(step)
		}
	}
	sent := func(step int) {
		t.Helper()
		waittest.Until(t, fmt.Sprintf("the server has sent step %d of each call", step), func() bool {
			for i := range calls {
				if s.server.steps(fmt.Sprint(i)) < step {
					return false
				}
			}
			return true
		})
	}
	s.server.allow("all", 10)
	all(5) // the rest may be on its way
	edge.kill()
	s.server.allow("all", 20)
	all(20)
	s.edge(t, edge.host())

	s.server.allow("all", 30)
	all(25)
	s.way.block()
	s.server.allow("all", 40)
	sent(40)
	s.way.unblock()
	all(40)

	s.server.allow("all", steps+1)
	for i, call := range calls {
		call.finish(fmt.Sprint(i), steps)
		if n := s.server.runs(fmt.Sprint(i)); n != 1 {
			t.Errorf("tool %d ran %d times", i, n)
		}
	}
}
