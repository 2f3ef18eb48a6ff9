package edge

import (
	"context"
	"time"

	"rejoin/services/sse-edge/cursor"
)

// sieve makes one page of what a filter shows out of several reads.
type sieve struct {
	filter *filter
	limit  int // events on the page

	page     cursor.Step
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
		case <-s.streams.draining():
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
	}
	for i := range found.Items {
		it := &found.Items[i]
		if len(v.page.Items) == v.limit || len(v.page.Items) > 0 && v.bytes+len(it.Frame) > pageBytes {
			r.GoBack(found, i)
			return true
		}
		v.looked++
		v.lookedAt += len(it.Frame)
		if v.filter.shows(it.Frame) {
			v.page.Items = append(v.page.Items, *it)
			v.bytes += len(it.Frame)
		}
	}
	v.page.Ended = found.Ended
	return found.Ended || len(found.Gaps) > 0 || len(v.page.Items) == v.limit || v.looked >= sieveEvents || v.lookedAt >= sieveBytes
}
