package edge

import (
	"cmp"
	"context"
	"crypto/rand"
	"os"

	"rejoin/shared/inspect"
)

// audience returns how the edge answers the janitor until ctx ends.
func (s *Service) audience(ctx context.Context) func(inspect.Question) inspect.Answer {
	id := rand.Text()
	host, _ := os.Hostname() // or none is shown
	return func(q inspect.Question) inspect.Answer {
		a := inspect.Answer{Edge: id, Host: host}
		a.Clients, a.Of = s.admitted.Clients(q)
		limit := cmp.Or(q.Limit, inspect.MaxItems)
		switch q.About {
		case inspect.Clients:
		case inspect.Connections:
			a.Connections, a.Total = s.streams.Connections(ctx, q.Session, limit)
		case inspect.Happenings:
			a.Happenings, a.Total, a.Since = s.streams.History.OfSession(q.Session, limit)
		case inspect.Gaps:
			a.Happenings, a.Reasons, a.Total, a.Since = s.streams.History.Lately(limit)
		}
		return a
	}
}
