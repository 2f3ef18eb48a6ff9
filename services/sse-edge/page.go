package edge

import (
	"context"
	"net"
	"strconv"
	"sync"
	"time"

	"rejoin/services/sse-edge/cursor"

	"rejoin/services/sse-edge/window"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/quota"
	"rejoin/shared/web"
)

// pageBytes bounds a page: the first event that would exceed it begins the next one.
const pageBytes = 4 << 20

// page answers a poll, at once when there is something to tell, or else after at
// most the wait that was asked for. It counts until its last byte is written.
func (s *Service) page(c *fiber.Ctx, req request) error {
	by, err := s.letIn(c, req.at.Session)
	if err != nil {
		return err
	}
	held := s.memory.Part(s.cfg.Clients.Client(c))
	over := func() {
		held.Release()
		s.admitted.Leave(by.Visit)
	}
	body, err := s.readPage(c, req, by, held)
	if err != nil {
		over()
		return err
	}
	s.metrics.pages.Inc()
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return web.Send(c, body, over)
}

// readPage waits for what a poll is to be told, and returns the answer. held grows by what the
// answer takes.
func (s *Service) readPage(c *fiber.Ctx, req request, by asked, held *quota.Part) ([]byte, error) {
	limit := window.Limits{Events: req.limit, Bytes: pageBytes}
	if req.filter != nil {
		limit.Events = maxLimit // most of them may be hidden
	}
	r, err := s.open(req, limit)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if !req.expires.IsZero() {
		req.wait = min(req.wait, max(time.Until(req.expires), 0))
	}
	ctx, stop := s.listening(c.Context().Conn())
	defer stop()
	var step cursor.Step
	if req.filter == nil {
		step, err = s.poll(ctx, r, req.wait)
	} else {
		step, err = s.pollFiltered(ctx, r, req)
	}
	if err != nil {
		if cursor.Transient(err) {
			return nil, web.Wrap(err, web.CodeUnavailable, "The log cannot be reached at the moment.")
		}
		return nil, err
	}
	if s.out(req.guest) { // while it waited
		return nil, web.New(web.CodeNotFound, "There is no such session.")
	}
	if len(step.Gaps) > 0 && req.onGapError {
		s.streams.told(r, step, 0, by) // of its events the client gets none
		return nil, goneProblem(step.Gaps[0])
	}
	size := pageSize(step)
	if !held.Grow(int64(size)) {
		return nil, web.ErrNoMemory
	}
	s.streams.told(r, step, len(step.Items), by)
	var g *gapData
	if len(step.Gaps) > 0 {
		one := merged(step.Gaps)
		g = &gapData{Reason: one.Reason, Certain: one.Certain, Stream: orNull(one.Stream), Requested: one.Requested, ResumesAt: r.ID(r.ResumesAt(step))}
	}
	return appendPage(make([]byte, 0, size), r, step, g), nil
}

// pageOverhead is about what an answer has of an event besides its frame.
const pageOverhead = 200

// pageSize is about what the answer to a poll takes.
func pageSize(s cursor.Step) int {
	n := pageOverhead
	for i := range s.Items {
		n += len(s.Items[i].Frame) + pageOverhead
	}
	return n
}

// appendPage appends the answer to a poll: the events; cursor, which is where the next
// poll goes on; gap, which is what should have come before the events and no longer
// exists; and closed, which says that nothing will ever follow.
func appendPage(b []byte, r *cursor.Reader, step cursor.Step, g *gapData) []byte {
	b = append(b, `{"events":[`...)
	for i := range step.Items {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendObject(b, &step.Items[i], r.Tags)
	}
	b = appendString(append(b, `],"cursor":`...), r.ID(r.Cursor))
	b = append(append(b, `,"gap":`...), marshal(g)...)
	b = strconv.AppendBool(append(b, `,"closed":`...), step.Ended)
	return append(b, '}')
}

// merged returns the one gap that a page tells of: the first one, about the whole
// session when there are others of other streams.
func merged(gaps []cursor.Gap) cursor.Gap {
	g := gaps[0]
	for _, other := range gaps[1:] {
		if other.Stream != g.Stream {
			g.Stream = ""
		}
	}
	return g
}

// goneEvery is how often a poll that waits looks whether its client is still there.
const goneEvery = time.Second

// listening returns a context that ends when the client has hung up, or the edge stops.
func (s *Service) listening(conn net.Conn) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(s.base)
	raw, err := RawOf(conn)
	if err != nil {
		return ctx, cancel
	}
	var mu sync.Mutex
	mu.Lock()
	defer mu.Unlock()
	var look *time.Timer
	look = time.AfterFunc(goneEvery, func() {
		mu.Lock()
		defer mu.Unlock()
		if hungUp(raw) {
			cancel()
		} else if ctx.Err() == nil {
			look.Reset(goneEvery)
		}
	})
	return ctx, func() {
		cancel()
		look.Stop()
	}
}

// poll reads until there is something to tell, wait is over, or ctx ends.
func (s *Service) poll(ctx context.Context, r *cursor.Reader, wait time.Duration) (cursor.Step, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+openTimeout)
	defer cancel()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		step, err := r.Next(ctx)
		if err != nil || !step.Empty() || wait == 0 {
			return step, err
		}
		select {
		case <-r.Wait(step):
		case <-timer.C:
			return step, nil
		case <-s.streams.draining():
			return step, nil
		case <-ctx.Done():
			return step, ctx.Err()
		}
	}
}

// goneProblem is the answer to a client that asked for an error instead of a gap.
func goneProblem(g cursor.Gap) error {
	return web.New(web.CodeGap, "The cursor cannot be continued: "+string(g.Reason)+".")
}
