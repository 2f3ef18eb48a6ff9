package ledger

import (
	"cmp"
	"slices"
	"time"

	"rejoin/shared/eventlog"
)

// stretch is a run of entries: how old they are and how much they take, coarsely.
type stretch struct {
	from   uint64 // the first sequence
	begun  time.Time
	newest time.Time
	bytes  int64 // of its entries that are in the log
}

// entryOverhead is about how much JetStream stores of an event besides the message: its record, the
// subject and the headers. It is not exact, and need not be: see [stretches.lighter].
const entryOverhead = 250

// Step bounds a stretch: by its age and by its bytes, whichever it reaches first. Not positive:
// no bound.
type Step struct {
	age   time.Duration
	bytes int64
}

// StepOf returns a step with which the floor is as exact as it need be.
func StepOf(s eventlog.Settings) Step {
	return Step{s.MaxAge / 1024, s.Limits().MaxBytes / 256}
}

// stretches are all entries of the log, in order, so that the first one of an age, or the first
// one after which there is a share of the bytes, is a look-up.
type stretches struct {
	Step Step
	list []stretch
}

// maxStretches bounds them: of more, two are made one.
const maxStretches = 4096

func (s *stretches) add(e eventlog.Entry) {
	if n := len(s.list); n == 0 || s.Step.age > 0 && e.Time.Sub(s.list[n-1].begun) >= s.Step.age || s.Step.bytes > 0 && s.list[n-1].bytes >= s.Step.bytes {
		if n == maxStretches {
			s.halve()
		}
		s.list = append(s.list, stretch{e.Sequence, e.Time, e.Time, 0})
	}
	last := &s.list[len(s.list)-1]
	last.bytes += int64(e.Size) + entryOverhead
	if e.Time.After(last.newest) {
		last.newest = e.Time
	}
}

func (s *stretches) halve() {
	for i := range len(s.list) / 2 {
		one, next := s.list[2*i], s.list[2*i+1]
		if one.bytes += next.bytes; next.newest.After(one.newest) {
			one.newest = next.newest
		}
		s.list[i] = one
	}
	s.list = slices.Clip(s.list[:len(s.list)/2])
}

// remove subtracts an entry that is deleted.
func (s *stretches) remove(e entry) {
	i, found := slices.BinarySearchFunc(s.list, e.seq, func(one stretch, seq uint64) int { return cmp.Compare(one.from, seq) })
	if !found {
		i--
	}
	if i >= 0 {
		s.list[i].bytes -= int64(e.size) + entryOverhead
	}
}

// dropBefore forgets the stretches before a sequence.
func (s *stretches) dropBefore(seq uint64) {
	n := 0
	for n+1 < len(s.list) && s.list[n+1].from <= seq {
		n++
	}
	s.list = s.list[n:]
}

// youngerThan returns a sequence before which all entries are older than a moment, and after
// which few are.
func (s *stretches) youngerThan(t time.Time, through uint64) uint64 {
	for _, one := range s.list {
		if one.newest.After(t) {
			return one.from
		}
	}
	return through + 1
}

// lighter returns a sequence from which on there is a share of the bytes, or less. Shares are
// of all bytes in the stretches, so it does not matter that the ledger knows no exact sizes.
func (s *stretches) lighter(share float64, through uint64) uint64 {
	total := int64(0)
	for _, one := range s.list {
		total += one.bytes
	}
	left := total
	for _, one := range s.list {
		if float64(left) <= share*float64(total) {
			return one.from
		}
		left -= one.bytes
	}
	return through + 1
}
