package mcpstore

// record is an event of a stream, as the log has it.
type record struct {
	index
	sequence uint64
	data     []byte
}

// history has the remaining records of a stream, in the order of the log.
type history struct {
	events []record // the remaining events, with rising indexes
	last   int      // the highest index, of an event or a note; -1 for none
	writer string   // of the last record
	forked bool     // two writers have counted in parallel
}

// newHistory interprets a stream's records after cleared, the sequence of the
// newest =clear marker. Of two with one index and writer the first counts: the other
// is a note about an event that was stored after all, or the other way round. A record
// after a higher index of its writer was stored when its Append had failed.
func newHistory(records []record, cleared uint64) history {
	h := history{last: -1}
	before := map[string]bool{}
	for _, r := range records {
		if r.sequence <= cleared {
			continue
		}
		if r.writer != h.writer {
			h.forked = h.forked || before[r.writer] || r.n <= h.last
			h.writer = r.writer
			before[h.writer] = true
		}
		if r.n <= h.last {
			continue
		}
		h.last = r.n
		if !r.lost {
			h.events = append(h.events, r)
		}
	}
	return h
}

// after returns all events after an index. count is how many events the stream has had
// at least, as far as this process knows. Errors are ErrLost, ErrAhead and ErrForked.
func (h history) after(index, count int) ([][]byte, error) {
	last := max(h.last, count-1)
	switch {
	case h.forked:
		return nil, ErrForked
	case index > last:
		return nil, ErrAhead
	}
	var all [][]byte
	for _, r := range h.events {
		if r.n > index {
			all = append(all, r.data)
		}
	}
	if len(all) != last-index { // indexes rise, so this is as many as there were
		return nil, ErrLost
	}
	return all, nil
}
