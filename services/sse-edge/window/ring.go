package window

import (
	"sort"
	"unsafe"
)

// indexEntry is the window's index of one event. It holds no pointer, so that the
// garbage collector has nothing to follow through a million of them.
type indexEntry struct {
	Sequence uint64
	offset   uint64 // of the frame, in bytes since the window began
	Time     int64  // nanoseconds since 1970
	size     uint32 // of the frame
	chain    uint32 // the number of its stream's chain
	dead     bool   // cleared: on no stream's chain any more, and to be passed over in the flow
	traced   bool   // the window has its trail
	stream   links
	flow     links
}

// links lead to the neighbours in a chain, as distances in entries; 0 means none.
//
// skip leads further back, so that an entry is found in logarithmic time, and height
// counts the entries up to here. Entries form a list of complete trees of which two
// of the same size become one under the next entry (Myers, An applicative
// random-access stack, 1983), so that appending stays O(1).
type links struct{ prev, next, skip, height uint32 }

// linksOf picks the links of one of the two chains that an entry is on.
type linksOf func(*indexEntry) *links

func streamLinks(e *indexEntry) *links { return &e.stream }
func flowLinks(e *indexEntry) *links   { return &e.flow }

// entryBytes is the memory of an entry.
const entryBytes = int(unsafe.Sizeof(indexEntry{}))

// ring holds the entries numbered first to next-1.
type ring struct {
	entries     []indexEntry
	first, next uint64
}

func (r *ring) clear() { r.first = r.next }

func (r *ring) len() int { return int(r.next - r.first) } //nolint:gosec // entries in memory

func (r *ring) bytes() int { return r.len() * entryBytes }

// at returns entry n, which must be held.
func (r *ring) at(n uint64) *indexEntry { return &r.entries[n%uint64(len(r.entries))] }

// holds reports whether there is an entry of a sequence.
func (r *ring) holds(sequence uint64) bool {
	n := sort.Search(r.len(), func(i int) bool { return r.at(r.first+uint64(i)).Sequence >= sequence }) //nolint:gosec // not negative
	return n < r.len() && r.at(r.first+uint64(n)).Sequence == sequence                                  //nolint:gosec // not negative
}

// push adds an entry and returns its number.
func (r *ring) push(e indexEntry) uint64 {
	if r.next-r.first == uint64(len(r.entries)) {
		r.grow()
	}
	n := r.next
	r.next++
	*r.at(n) = e
	return n
}

func (r *ring) pop() { r.first++ }

// grow doubles the ring. Entries keep their numbers.
func (r *ring) grow() {
	bigger := ring{entries: make([]indexEntry, max(64, 2*len(r.entries))), first: r.first, next: r.next}
	for n := r.first; n < r.next; n++ {
		*bigger.at(n) = *r.at(n)
	}
	*r = bigger
}
