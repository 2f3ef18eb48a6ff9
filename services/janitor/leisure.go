package janitor

import (
	"cmp"
	"slices"
	"time"
)

// What is not urgent is deleted in a fifth of the time, so that publishers do not
// notice: a server that has more to do takes longer for a delete, and gets a longer
// pause. If that would not do within a minute, in up to half of the time.
const (
	leisureTime  = time.Minute
	leisurePause = 4 // times as long as the batch before
)

// leisure is the removal of what is not urgent, a batch of one partition after the other.
type leisure struct {
	partitions []*partition
	begun      time.Time
	deleted    map[Reason]int // since then, or since the last report
}

// begin goes on with the partitions that a sweep found to have something left, which
// may hold some of them twice.
func (l *leisure) begin(partitions []*partition, now time.Time) {
	if len(l.partitions) == 0 {
		l.begun = now
	}
	slices.SortFunc(partitions, func(a, b *partition) int { return cmp.Compare(a.number, b.number) })
	l.partitions = slices.Compact(partitions)
}

// turn returns the partition of the next batch.
func (l *leisure) turn() *partition {
	if l.deleted == nil {
		l.deleted = map[Reason]int{}
	}
	return l.partitions[0]
}

// done notes that a batch took some time, and whether its partition has more. It
// returns how long to wait; left is how many entries there are to delete in all.
func (l *leisure) done(more bool, took time.Duration, now time.Time, left int) time.Duration {
	first := l.partitions[0]
	l.partitions = slices.Clone(l.partitions[1:])
	if more {
		l.partitions = append(l.partitions, first)
	}
	return leisurely(took, l.begun.Add(leisureTime).Sub(now), left)
}

// leisurely returns how long to wait after a batch that took some time, when what is
// left is due.
func leisurely(took, due time.Duration, left int) time.Duration {
	inTime := due*leisureSize/time.Duration(max(left, leisureSize)) - took
	return max(min(leisurePause*took, inTime), took)
}

func (l *leisure) over() bool { return len(l.partitions) == 0 }

// next returns when to go on, after a pause: nil when there is nothing left.
func (l *leisure) next(pause time.Duration) <-chan time.Time {
	if l.over() {
		return nil
	}
	return time.After(pause)
}
