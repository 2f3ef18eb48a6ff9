package eventlog

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
)

// Headers of a trim. headerListed is older than the term.
const (
	headerUpTo      = "Rejoin-Up-To"
	headerReason    = "Rejoin-Reason"
	headerListed    = "Rejoin-Removed"
	headerForgotten = "Rejoin-Forgotten"
)

// Reason says why events are removed.
type Reason string

// The reasons.
const (
	// Expired means that the events were older than the log's maximum age, or in the oldest
	// part of a partition that was full.
	Expired Reason = "expired"
	// Trimmed means that a limit of events, bytes or streams was exceeded, or that the session was closed a
	// while ago.
	Trimmed Reason = "trimmed"
	// Cleared means that the stream or session was cleared.
	Cleared Reason = "cleared"
)

// MaxListed is how many sequences one [Trim] lists at most: JetStream takes 64 KiB of headers.
const MaxListed = 4096

// Trim announces that events of a stream, or of a whole life when Stream is empty, are
// removed. For readers the announcement is the removal; the entries are deleted some time
// later. It lies after all events that it removes, so a reader of the log from a cursor on
// sees every trim that removes an event after the cursor.
type Trim struct {
	Session, Life, Stream string
	// UpTo is the sequence of the last event that is removed: with it, all older ones of the
	// stream or life are.
	UpTo   uint64
	Reason Reason
	// Listed are the sequences that are deleted after it, in order, at most [MaxListed]:
	// they explain the holes that the deletes leave. An entry that UpTo covers and Listed does
	// not name, such as an event that was stored meanwhile, stays in the log until the floor
	// passes it: a delete would leave a hole that nothing explains. Control entries of a life
	// that is forgotten may lie after UpTo.
	Listed []uint64
	// Forgotten says that only trims are left of the life.
	Forgotten bool
	// Generation is the ID of the newest one that the janitor knew: one that was held up may store the trim in a
	// later one. It is empty in trims of earlier versions.
	Generation string
	// Sequence and Time say where and when it was stored.
	Sequence uint64
	Time     time.Time

	unread bool // see readerTrim
}

// Holds reports whether a partition with these generations has lost none of the entries that the trim names. Otherwise
// its sequences are those of other entries.
func (t *Trim) Holds(gens []event.Generation) bool {
	newest := t.UpTo
	if n := len(t.Listed); n > 0 {
		newest = max(newest, t.Listed[n-1])
	}
	return !event.HasGeneration(gens, t.Generation) || // the list is bounded
		event.Fork([]event.Generation{{ID: t.Generation}}, gens) >= newest
}

// trimIn reads an entry of the kind [event.Trim]; nil when it cannot be read.
func trimIn(s event.Subject, h nats.Header, sequence uint64, at time.Time) *Trim {
	t := &Trim{Session: s.Session, Life: s.Life, Stream: s.Stream, Reason: Reason(h.Get(headerReason)), Forgotten: h.Get(headerForgotten) != "", Generation: h.Get(headerGeneration), Sequence: sequence, Time: at}
	var err error
	if t.UpTo, err = strconv.ParseUint(h.Get(headerUpTo), 10, 64); err != nil || t.UpTo >= sequence {
		return nil
	}
	if t.Listed, err = parseList(h.Get(headerListed), sequence-1); err != nil {
		return nil
	}
	return t
}

// readerTrim returns the trim at a sequence as readers apply it; t is nil when it cannot be read. Of a trim that
// cannot be read, as a later version may write, or that does not hold, it is unknown which of the events before it are
// removed.
func readerTrim(t *Trim, s event.Subject, sequence uint64) Trim {
	if t != nil {
		return *t
	}
	return Trim{Session: s.Session, Life: s.Life, Stream: s.Stream, UpTo: sequence - 1, Reason: Expired, Sequence: sequence, unread: true}
}

// in returns the trim as readers apply it in a partition with these generations.
func (t Trim) in(gens []event.Generation) Trim {
	if t.Holds(gens) {
		return t
	}
	return readerTrim(nil, event.Subject{Session: t.Session, Life: t.Life, Stream: t.Stream}, t.Sequence)
}

// formatList writes sequences as differences in base 36, each a number or "first*count"
// for a run of consecutive ones: 7,8,9,12 is "7*3,3".
func formatList(sequences []uint64) string {
	var b strings.Builder
	for before, i := uint64(0), 0; i < len(sequences); {
		run := 1
		for i+run < len(sequences) && sequences[i+run] == sequences[i]+uint64(run) { //nolint:gosec // not negative
			run++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(sequences[i]-before, 36))
		if run > 1 {
			b.WriteByte('*')
			b.WriteString(strconv.FormatInt(int64(run), 36))
		}
		i += run
		before = sequences[i-1]
	}
	return b.String()
}

var errList = errors.New("the list of a trim cannot be read")

// parseList reads the text of formatList: at most [MaxListed] sequences up to upTo.
func parseList(text string, upTo uint64) ([]uint64, error) {
	if text == "" {
		return nil, nil
	}
	var all []uint64
	last := uint64(0)
	for item := range strings.SplitSeq(text, ",") {
		first, count, run := strings.Cut(item, "*")
		step, err := strconv.ParseUint(first, 36, 64)
		n := int64(1)
		if run && err == nil {
			n, err = strconv.ParseInt(count, 36, 64)
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: %w", errList, err)
		case step == 0, n < 1, len(all)+int(min(n, MaxListed+1)) > MaxListed, step > upTo-last, uint64(n) > upTo-last-step+1:
			return nil, errList
		}
		for last += step; ; last++ {
			all = append(all, last)
			if n--; n == 0 {
				break
			}
		}
	}
	return all, nil
}
