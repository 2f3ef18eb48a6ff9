package subscriber

import (
	"context"
	"errors"
	"net"
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

// Page answers a poll, at once when there is an event, a gap or an end to report, or else
// after at most the requested wait. It counts until its last byte is written.
//
// A page that is requested right after a 201 may lack the event: JetStream has it, the tail
// receives it a moment later.
func (s *Service) Page(c *fiber.Ctx, req Request, form PageForm) error {
	by, err := s.Admit(c, req.At.Session)
	if err != nil {
		return err
	}
	held := s.memory.Part(s.Config.Clients.Client(c))
	over := func() {
		held.Release()
		s.Admission.Leave(by.Visit)
	}
	body, err := s.readPage(c, req, by, held, form)
	if err != nil {
		over()
		return err
	}
	s.metrics.pages.Inc()
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return web.SendCounted(c, body, over)
}

// PageForm appends the answer to a poll, made of the step that was read.
type PageForm func(b []byte, r *cursor.Reader, step cursor.Step) ([]byte, error)

// readPage waits for the step of a poll, and returns the answer. held grows by the memory of the
// answer.
func (s *Service) readPage(c *fiber.Ctx, req Request, by delivery.Request, held *quota.Part, form PageForm) ([]byte, error) {
	limit := window.Limits{Events: req.Limit, Bytes: pageBytes}
	if req.Filter != nil {
		limit.Events = MaxLimit // most of them may be hidden
	}
	r, err := s.Open(by.Client, req, limit)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	read := s.memory.Part(s.Config.Clients.Client(c)) // of the log, by the last step
	defer read.Release()
	r.Hold = func(bytes int) bool { return read.Resize(3 * int64(bytes)) } // as read, as frames, and as garbage
	if !req.Expires.IsZero() {
		req.Wait = min(req.Wait, max(time.Until(req.Expires), 0))
	}
	ctx, stop := s.listening(c.Context().Conn())
	defer stop()
	ctx = cursor.WithClient(ctx, by.Client)
	var step cursor.Step
	if req.Filter == nil {
		step, err = s.Poll(ctx, r, req.Wait)
	} else {
		step, err = s.pollFiltered(ctx, r, req)
	}
	if errors.Is(err, cursor.ErrNoMemory) {
		return nil, web.ErrNoMemory
	}
	if err != nil {
		return nil, Problem(err)
	}
	if s.Out(req.Guest) { // while it waited
		return nil, web.New(web.CodeNotFound, "There is no such session.")
	}
	if len(step.Gaps) > 0 && req.OnGapError {
		s.Connections.CountTold(r, step, 0, by) // the client receives none of its events
		return nil, GoneProblem(step.Gap())
	}
	size := pageOverhead * (1 + len(step.Gaps))
	for i := range step.Items {
		size += len(step.Items[i].Frame) + pageOverhead
	}
	if !held.Grow(int64(size)) {
		return nil, web.ErrNoMemory
	}
	s.Connections.CountTold(r, step, len(step.Items), by)
	return form(make([]byte, 0, size), r, step)
}

// pageOverhead is about the bytes of a gap in an answer, and of an event besides its frame.
const pageOverhead = 200

// goneEvery is how often a poll that waits checks whether its client is still connected.
const goneEvery = time.Second

// listening returns a context that ends when the client has hung up, or the edge stops.
func (s *Service) listening(conn net.Conn) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(s.Base)
	raw, err := delivery.RawOf(conn)
	if err != nil {
		return ctx, cancel
	}
	var mu sync.Mutex
	mu.Lock()
	defer mu.Unlock()
	var check *time.Timer
	check = time.AfterFunc(goneEvery, func() {
		mu.Lock()
		defer mu.Unlock()
		if delivery.HungUp(raw) {
			cancel()
		} else if ctx.Err() == nil {
			check.Reset(goneEvery)
		}
	})
	return ctx, func() {
		cancel()
		check.Stop()
	}
}

// Poll reads until a step is not empty, wait is over, or ctx ends.
func (s *Service) Poll(ctx context.Context, r *cursor.Reader, wait time.Duration) (cursor.Step, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+OpenTimeout)
	defer cancel()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		changed := r.Changed()
		step, err := r.Next(ctx)
		if err != nil || !step.Empty() || wait == 0 {
			return step, err
		}
		if !s.await(ctx, changed, timer) {
			return step, ctx.Err()
		}
	}
}

// await waits until there may be a new event or an end. It returns false when the poll's wait is over.
func (s *Service) await(ctx context.Context, changed <-chan struct{}, wait *time.Timer) bool {
	select {
	case <-changed:
		return true
	case <-wait.C:
	case <-s.Connections.Draining():
	case <-ctx.Done():
	}
	return false
}

// GoneProblem is the answer to a client that asked for an error instead of a gap.
func GoneProblem(g cursor.Gap) error {
	return web.New(web.CodeGap, "The cursor cannot be continued: "+string(g.Reason)+".")
}

// The most that is read for one page of a filter. Later events are for the next page, which continues at the
// cursor, however little this one shows.
const (
	filteredEvents = 10 * MaxLimit
	filteredBytes  = 4 * pageBytes
)

// pollFiltered is Poll for a client with a filter: it reads until the page is full, or
// there is nothing more. An empty page then waits for events until the wait is over.
func (s *Service) pollFiltered(ctx context.Context, r *cursor.Reader, req Request) (page cursor.Step, _ error) {
	ctx, cancel := context.WithTimeout(ctx, req.Wait+OpenTimeout)
	defer cancel()
	timer := time.NewTimer(req.Wait)
	defer timer.Stop()
	for bytes, read, readBytes := 0, 0, 0; ; {
		at, tags, changed := r.Cursor, r.Tags, r.Changed()
		found, err := r.Next(ctx)
		switch gap := len(found.Gaps) > 0; {
		case err != nil && read == 0:
			return cursor.Step{}, err
		case err != nil, gap && len(page.Items) > 0: // a gap stands before a page's events
			r.Cursor, r.Tags = at, tags // the next page finds it again from here
			page.More = page.More || gap
			return page, nil
		case gap || page.First == 0:
			page.Gaps, page.First = found.Gaps, found.First
		}
		for i := range found.Items {
			it := &found.Items[i]
			if len(page.Items) == req.Limit || len(page.Items) > 0 && bytes+len(it.Frame) > pageBytes {
				r.GoBack(found, i)
				page.More = true
				return page, nil
			}
			read++
			readBytes += len(it.Frame)
			if req.Filter.Shows(it) {
				page.Items = append(page.Items, *it)
				bytes += len(it.Frame)
			}
		}
		page.Ended, page.More = found.Ended, found.More
		switch {
		case page.Ended, len(page.Gaps) > 0, len(page.Items) == req.Limit, read >= filteredEvents, readBytes >= filteredBytes,
			found.Empty() && (len(page.Items) > 0 || !s.await(ctx, changed, timer)):
			return page, nil
		}
	}
}
