package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/inbox"
	"rejoin/shared/presence"
)

const (
	aliveWithin = time.Second // is how long another bridge of the name has to answer
	aliveEvery  = time.Second // between two questions
)

// aliveSubject is where a bridge of a name says that it is there.
func aliveSubject(name string) string { return "mcp.rpc.b." + event.Token(name) }

// alone waits until no other bridge of this name answers, since two would do everything
// twice, and then answers that this one is there. Two that start at the same moment do not
// see each other.
func (s *Service) alone(ctx context.Context) (*nats.Subscription, error) {
	subject := aliveSubject(s.name)
	for told := false; ; {
		within, cancel := context.WithTimeout(ctx, aliveWithin)
		_, err := s.backend.Conn.RequestWithContext(within, subject, nil)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
			sub, err := s.backend.Conn.Subscribe(subject, func(msg *nats.Msg) {
				if inbox.Is(msg.Reply) {
					_ = msg.Respond(nil)
				}
			})
			if err != nil {
				return nil, fmt.Errorf("cannot listen on NATS: %w", err)
			}
			return sub, nil
		case err == nil && !told:
			told = true
			s.log.Warn("another bridge has the same --bridge-name; this one waits until that has ended", "name", s.name)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(aliveEvery):
		}
	}
}

// present tells the janitor that sessions with open calls are not idle.
func (s *Service) present() {
	id := "bridge-" + rand.Text()
	err := presence.Serve(s.life, s.backend.Conn, func(q presence.Question) presence.Answer {
		a := presence.Answer{Edge: id}
		for i, asked := range q.Sessions {
			if h := s.held(asked.Name); h != nil && h.busy() {
				a.Present = append(a.Present, presence.Present{Session: i})
			}
		}
		return a
	})
	if err != nil {
		s.log.Warn("the janitor does not hear of open calls", "error", err)
	}
}
