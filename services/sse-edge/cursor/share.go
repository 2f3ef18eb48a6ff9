package cursor

import "rejoin/shared/event"

// Shared is a quick read of one reader, for others with the cursor from which it began.
type Shared struct {
	Step    Step
	from    uint64
	through uint64
	last    uint64
	sent    uint64 // the newest event; 0 without one
	forks   int
	tags    event.TagParts
}

// Share returns the result of a quick read from a cursor, unless the reader left out events
// that others have to get.
func (r *Reader) Share(from uint64, found Step) (Shared, bool) {
	q := Shared{Step: found, from: from, through: r.Cursor, last: r.LastNumber, forks: r.Forks, tags: r.Tags.parts}
	if len(found.Items) > 0 {
		q.sent = r.sent
	}
	return q, len(r.Dropped) == 0
}

// Fits reports whether a quick read of another reader would find the same.
func (q *Shared) Fits(r *Reader) bool {
	return r.Cursor == q.from && !r.Fresh && len(r.Pending) == 0 && len(r.Dropped) == 0 && r.Forks == q.forks &&
		(r.Cursor+1 >= q.Step.jumpEnd || r.provenTo+1 >= q.Step.jumpEnd) && r.Tags.parts == q.tags
}

// Move moves the cursor of a reader that was served by the read.
func (q *Shared) Move(r *Reader) {
	r.Cursor, r.LastNumber, r.sent = q.through, q.last, max(r.sent, q.sent)
}
