package edge

import (
	"context"
	"time"
)

// sieve makes one page of what a filter shows out of several reads.
type sieve struct {
	filter *filter
	limit  int // events on the page

	page     step
	bytes    int // of the frames on the page
	looked   int // events that were read, shown or not
	lookedAt int // their bytes
}

// The work of one page. What lies behind is for the next one, which goes on at the
// cursor, however little this one shows.
const (
	sieveEvents = 10 * maxLimit
	sieveBytes  = 4 * pageBytes
)

// pollFiltered is poll for a client with a filter: it reads until the page is full, or
// there is nothing more, and nothing is to be waited for either.
func (s *Service) pollFiltered(ctx context.Context, r *reader, req request) (step, error) {
	ctx, cancel := context.WithTimeout(ctx, req.wait+openTimeout)
	defer cancel()
	timer := time.NewTimer(req.wait)
	defer timer.Stop()
	v := &sieve{filter: req.filter, limit: req.limit}
	for {
		at, tags := r.Cursor, r.tags
		found, err := r.next(ctx)
		if err != nil {
			if v.looked > 0 { // this much is good, and the rest comes with the next page
				r.Cursor, r.tags = at, tags
				return v.page, nil
			}
			return step{}, err
		}
		if len(found.gaps) > 0 && len(v.page.items) > 0 {
			// A gap stands before a page's events. The next page finds it again from here.
			r.Cursor, r.tags = at, tags
			return v.page, nil
		}
		if v.take(r, found) {
			return v.page, nil
		}
		if !found.empty() {
			continue
		}
		if len(v.page.items) > 0 {
			return v.page, nil
		}
		select {
		case <-r.wait(found):
		case <-timer.C:
			return v.page, nil
		case <-s.drain:
			return v.page, nil
		case <-ctx.Done():
			return v.page, nil
		}
	}
}

// take adds what the filter shows of a read, and reports whether the page is done.
func (v *sieve) take(r *reader, found step) (done bool) {
	if len(found.gaps) > 0 {
		v.page.gaps, v.page.first = found.gaps, found.first
	}
	for i := range found.items {
		it := &found.items[i]
		if len(v.page.items) == v.limit || len(v.page.items) > 0 && v.bytes+len(it.Frame) > pageBytes {
			r.goBack(found, i)
			return true
		}
		v.looked++
		v.lookedAt += len(it.Frame)
		if v.filter.shows(it.Frame) {
			v.page.items = append(v.page.items, *it)
			v.bytes += len(it.Frame)
		}
	}
	v.page.ended = found.ended
	return found.ended || len(found.gaps) > 0 || len(v.page.items) == v.limit || v.looked >= sieveEvents || v.lookedAt >= sieveBytes
}
