package subscriber

import (
	"context"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/web"
)

// Request is a subscriber's request.
type Request struct {
	At    window.Place
	Start cursor.Start
	// Envelope wraps each message in an object that names its stream.
	Envelope bool
	// Filter says which events are shown; nil: all.
	Filter *delivery.Filter
	// OnGapError answers 410 instead of reporting a gap in the stream.
	OnGapError bool
	Limit      int
	Wait       time.Duration
	// Expires is when the token expires; zero without access control.
	Expires time.Time
	// Guest is the client, if it is a member of the session.
	Guest *Guest
}

// Limits of a page.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// One step of the cursor loop: as many frames as one write may carry.
const (
	StepEvents = 1024
	StepBytes  = 256 << 10
)

// OpenTimeout bounds how long a subscriber may wait for its first answer.
const OpenTimeout = 10 * time.Second

// Problem returns an error of the log as a client receives it: a temporary one is unavailable.
func Problem(err error) error {
	if err != nil && cursor.Transient(err) {
		return web.Wrap(err, web.CodeUnavailable, "The log cannot be reached at the moment.")
	}
	return err
}

// Open returns the reader of a client's request, or a problem.
func (s *Service) Open(client string, req Request, limit window.Limits) (*cursor.Reader, error) {
	ctx, cancel := context.WithTimeout(s.Base, OpenTimeout)
	defer cancel()
	r, err := s.Parts.Open(cursor.WithClient(ctx, client), req.At, req.Start, limit)
	if err != nil {
		return nil, Problem(err)
	}
	if req.Start.After != "" {
		from := "window"
		if r.Came == cursor.FromLog {
			from = "log"
		}
		s.metrics.resumes.WithLabelValues(from).Inc()
	}
	return r, nil
}
