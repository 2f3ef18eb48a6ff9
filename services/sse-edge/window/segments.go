package window

import "slices"

// segments is a log of bytes in memory: appended at the end, freed at the front,
// and never moved, so that slices of it can be written to many connections without
// a copy. A freed segment lives on until the last write that uses it is done.
type segments struct {
	size  int // of a new segment
	list  [][]byte
	bases []uint64 // the offset of each segment's first byte
	next  uint64   // the offset of the next byte
	total int      // the capacity of all segments
}

const maxSegment = 1 << 20

func newSegments(budget int) segments {
	return segments{size: min(max(budget/16, 1<<10), maxSegment)}
}

func (s *segments) clear() {
	s.list, s.bases, s.total = nil, nil, 0
}

// append lets write append to the newest segment and returns where the result
// lies. A result that does not fit begins another segment, of its own size when it is
// larger than usual. about is the expected size: when there is no room for that,
// the other segment is begun at once.
func (s *segments) append(about int, write func([]byte) []byte) (offset uint64, size uint32) {
	last := len(s.list) - 1
	if last < 0 || cap(s.list[last])-len(s.list[last]) < about {
		last = s.add(max(s.size, about))
	}
	seg := s.list[last]
	out := write(seg)
	n := len(out) - len(seg)
	if cap(out) == cap(seg) && n > 0 && &out[:1][0] == &seg[:1][0] {
		s.list[last] = out
	} else {
		// The frame did not fit and write moved to new memory: keep only the frame.
		last = s.add(max(s.size, n))
		s.list[last] = append(s.list[last], out[len(seg):]...)
	}
	offset = s.next
	s.next += uint64(n)
	return offset, uint32(n) //nolint:gosec // a frame is at most a few times 31 MiB
}

func (s *segments) add(size int) int {
	s.list = append(s.list, make([]byte, 0, size))
	s.bases = append(s.bases, s.next)
	s.total += size
	return len(s.list) - 1
}

// bytes returns the bytes that were appended at an offset, and the offset of their
// segment. Two results of one segment that follow each other can be joined by
// lengthening the first.
func (s *segments) bytes(offset uint64, size uint32) (b []byte, segment uint64) {
	i, begins := slices.BinarySearch(s.bases, offset)
	if !begins {
		i-- // it lies in the segment before
	}
	from := offset - s.bases[i]
	return s.list[i][from : from+uint64(size)], s.bases[i]
}

// freeBefore frees the segments that hold nothing at or after an offset.
func (s *segments) freeBefore(offset uint64) {
	n := 0
	for n+1 < len(s.bases) && s.bases[n+1] <= offset {
		s.total -= cap(s.list[n])
		s.list[n] = nil
		n++
	}
	if n > 0 {
		s.list, s.bases = s.list[n:], s.bases[n:]
	}
}
