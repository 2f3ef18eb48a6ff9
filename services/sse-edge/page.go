package edge

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/quota"
	"rejoin/shared/web"
)

// pageBytes bounds a page: the first event that would exceed it begins the next one.
const pageBytes = 4 << 20

// page answers a poll, at once when there is something to tell, or else after at
// most the wait that was asked for. It counts until its last byte is written.
//
// A page that is requested right after a 201 may lack the event: JetStream has it, the tail
// brings it a moment later.
func (s *Service) page(c *fiber.Ctx, req request, form pageForm) error {
	by, err := s.letIn(c, req.at.Session)
	if err != nil {
		return err
	}
	held := s.memory.Part(s.cfg.Clients.Client(c))
	over := func() {
		held.Release()
		s.admitted.Leave(by.Visit)
	}
	body, err := s.readPage(c, req, by, held, form)
	if err != nil {
		over()
		return err
	}
	s.metrics.pages.Inc()
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return web.Send(c, body, over)
}

// pageForm appends the answer to a poll, of what was read.
type pageForm func(b []byte, r *cursor.Reader, step cursor.Step) ([]byte, error)

// readPage waits for what a poll is to be told, and returns the answer. held grows by what the
// answer takes.
func (s *Service) readPage(c *fiber.Ctx, req request, by delivery.Request, held *quota.Part, form pageForm) ([]byte, error) {
	limit := window.Limits{Events: req.limit, Bytes: pageBytes}
	if req.filter != nil {
		limit.Events = maxLimit // most of them may be hidden
	}
	r, err := s.open(req, limit)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	read := s.memory.Part(s.cfg.Clients.Client(c)) // of the log, by the last step
	defer read.Release()
	r.Hold = func(bytes int) bool {
		read.Release()
		return read.Grow(3 * int64(bytes)) // as they came, as frames, and what the collector leaves
	}
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
		if errors.Is(err, cursor.ErrNoMemory) {
			return nil, web.ErrNoMemory
		}
		if cursor.Transient(err) {
			return nil, web.Wrap(err, web.CodeUnavailable, "The log cannot be reached at the moment.")
		}
		return nil, err
	}
	if s.out(req.guest) { // while it waited
		return nil, web.New(web.CodeNotFound, "There is no such session.")
	}
	if len(step.Gaps) > 0 && req.onGapError {
		s.streams.CountTold(r, step, 0, by) // of its events the client gets none
		return nil, goneProblem(step.Gaps[0])
	}
	size := pageSize(step)
	if !held.Grow(int64(size)) {
		return nil, web.ErrNoMemory
	}
	s.streams.CountTold(r, step, len(step.Items), by)
	return form(make([]byte, 0, size), r, step)
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
// poll continues; gap, which is what should have come before the events and no longer
// exists; and closed, which says that nothing will ever follow.
func appendPage(b []byte, r *cursor.Reader, step cursor.Step) ([]byte, error) {
	var g *delivery.GapData
	if len(step.Gaps) > 0 {
		one := merged(step.Gaps)
		g = &delivery.GapData{Reason: one.Reason, Certain: one.Certain, Stream: delivery.OrNull(one.Stream), Requested: one.Requested, ResumesAt: r.ID(r.ResumesAt(step))}
	}
	b = append(b, `{"events":[`...)
	for i := range step.Items {
		if i > 0 {
			b = append(b, ',')
		}
		b = delivery.AppendObject(b, &step.Items[i], r.Tags)
	}
	b = delivery.AppendString(append(b, `],"cursor":`...), r.ID(r.Cursor))
	b = append(append(b, `,"gap":`...), delivery.Marshal(g)...)
	b = strconv.AppendBool(append(b, `,"closed":`...), step.Ended)
	return append(b, '}'), nil
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
	raw, err := delivery.RawOf(conn)
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
		if delivery.HungUp(raw) {
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
		case <-s.streams.Draining():
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

// sieve makes one page of what a filter shows out of several reads.
type sieve struct {
	filter *delivery.Filter
	limit  int // events on the page

	page     cursor.Step
	bytes    int // of the frames on the page
	looked   int // events that were read, shown or not
	lookedAt int // their bytes
}

// The work of one page. What follows is for the next one, which continues at the
// cursor, however little this one shows.
const (
	sieveEvents = 10 * maxLimit
	sieveBytes  = 4 * pageBytes
)

// pollFiltered is poll for a client with a filter: it reads until the page is full, or
// there is nothing more, and nothing is to be waited for either.
func (s *Service) pollFiltered(ctx context.Context, r *cursor.Reader, req request) (cursor.Step, error) {
	ctx, cancel := context.WithTimeout(ctx, req.wait+openTimeout)
	defer cancel()
	timer := time.NewTimer(req.wait)
	defer timer.Stop()
	v := &sieve{filter: req.filter, limit: req.limit}
	for {
		at, tags := r.Cursor, r.Tags
		found, err := r.Next(ctx)
		if err != nil {
			if v.looked > 0 { // this much is good, and the rest comes with the next page
				r.Cursor, r.Tags = at, tags
				return v.page, nil
			}
			return cursor.Step{}, err
		}
		if len(found.Gaps) > 0 && len(v.page.Items) > 0 {
			// A gap stands before a page's events. The next page finds it again from here.
			r.Cursor, r.Tags = at, tags
			v.page.More = true
			return v.page, nil
		}
		if v.take(r, found) {
			return v.page, nil
		}
		if !found.Empty() {
			continue
		}
		if len(v.page.Items) > 0 {
			return v.page, nil
		}
		select {
		case <-r.Wait(found):
		case <-timer.C:
			return v.page, nil
		case <-s.streams.Draining():
			return v.page, nil
		case <-ctx.Done():
			return v.page, nil
		}
	}
}

// take adds what the filter shows of a read, and reports whether the page is done.
func (v *sieve) take(r *cursor.Reader, found cursor.Step) (done bool) {
	if len(found.Gaps) > 0 {
		v.page.Gaps, v.page.First = found.Gaps, found.First
	} else if v.page.First == 0 {
		v.page.First = found.First
	}
	for i := range found.Items {
		it := &found.Items[i]
		if len(v.page.Items) == v.limit || len(v.page.Items) > 0 && v.bytes+len(it.Frame) > pageBytes {
			r.GoBack(found, i)
			v.page.More = true
			return true
		}
		v.looked++
		v.lookedAt += len(it.Frame)
		if v.filter.Shows(it) {
			v.page.Items = append(v.page.Items, *it)
			v.bytes += len(it.Frame)
		}
	}
	v.page.Ended, v.page.More = found.Ended, found.More
	return found.Ended || len(found.Gaps) > 0 || len(v.page.Items) == v.limit || v.looked >= sieveEvents || v.lookedAt >= sieveBytes
}
