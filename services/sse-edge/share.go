package edge

import "rejoin/shared/event"

// sharedRead is a quick read of one reader, for others whose cursors are where it began.
type sharedRead struct {
	step      step
	from      uint64
	through   uint64
	last      uint64
	rollbacks int
	tags      event.Place
}

// share returns what a quick read from a cursor has found, unless the reader left something
// out that others have to get.
func (r *reader) share(from uint64, found step) (sharedRead, bool) {
	return sharedRead{step: found, from: from, through: r.Cursor, last: r.Last, rollbacks: r.Rollbacks, tags: r.tags.place}, len(r.Dropped) == 0
}

// fits reports whether a quick read of another reader would find the same.
func (q *sharedRead) fits(r *reader) bool {
	return r.Cursor == q.from && !r.fresh && len(r.pending) == 0 && len(r.Dropped) == 0 && r.Rollbacks == q.rollbacks &&
		(r.Cursor+1 >= q.step.proved || r.provenTo+1 >= q.step.proved) && r.tags.place == q.tags
}

// move moves the cursor of a reader that was served by the read.
func (q *sharedRead) move(r *reader) { r.Cursor, r.Last = q.through, q.last }
