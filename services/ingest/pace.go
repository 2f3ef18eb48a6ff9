package ingest

import (
	"errors"
	"fmt"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/auth"
	"rejoin/shared/eventlog"
	"rejoin/shared/web"
)

// rateError is returned when a publisher or a session has as many messages a second as it
// may, or a client as many new sessions. wait is how long it is until there may be another one.
type rateError struct {
	of, what string
	wait     time.Duration
}

func (e *rateError) Error() string {
	return fmt.Sprintf("This %s has more %s a second than it may.", e.of, e.what)
}

// publisher returns whom the rates of a request are counted for: the token's subject, or the
// client's address without access control.
func (s *Service) publisher(c *fiber.Ctx, grants auth.Grants) string {
	if s.cfg.Access.On() {
		return grants.Subject
	}
	return web.Counted(s.cfg.Clients.Address(c)).String()
}

// takeRate counts a message for its publisher; on NATS the publisher is unknown. The error is
// a [*rateError].
func (s *Service) takeRate(m message) error {
	if m.trusted {
		return nil
	}
	if wait := s.publishers.Take(m.publisher); wait > 0 {
		return &rateError{"publisher", "messages", wait}
	}
	return nil
}

// longestPause is how long a batch is slowed down at a time: for one of its messages when
// it is a text in NDJSON, which waits in its client, and else for all of them together.
const longestPause = 10 * time.Second

// errHalted is returned when a batch ends while it waits.
var errHalted = errors.New("the batch ends")

// send sends a message of the batch. The error is a [*rateError] when it would have to wait for too
// long, or errHalted.
func (b *batch) send(m message) (under *inFlight, err error) {
	if b.slow == slowEach {
		b.paused = 0
	}
	err = b.pace(func() error { return b.service.takeRate(m) })
	if err == nil {
		err = b.pace(func() (err error) {
			under, err = b.service.send(b.ctx, m, b.service.cfg.AckTimeout)
			return err
		})
	}
	if errors.Is(err, eventlog.ErrEnded) {
		return nil, errHalted
	}
	if err != nil && !errors.Is(err, errHalted) {
		b.service.count(b.ctx, m, stored{}, err)
	}
	return under, err
}

// pace tries until what it tries is not refused for the rate any more.
//
// A batch over its rate returns its place among the publishes in flight and tries again, so
// that what it knows of the session is never old when the publish begins.
func (b *batch) pace(try func() error) error {
	for {
		err := try()
		limited, ok := errors.AsType[*rateError](err)
		if !ok || b.slow == slowNever || b.paused+limited.wait > longestPause {
			return err
		}
		b.paused += limited.wait
		if !b.pause(limited.wait) {
			return errHalted
		}
	}
}

// pause reports whether the batch continues after d.
func (b *batch) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-b.trouble:
	case <-b.stopping:
	case <-b.over:
	}
	return false
}
