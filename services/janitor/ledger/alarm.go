package ledger

import (
	"maps"
	"slices"
)

// Alarm is from how many events or bytes on a session or stream is trimmed before the next sweep: an
// eighth above its limit, at least one above, since each trim is an entry of the log. Not positive:
// never.
type Alarm struct{ perStream, events, bytes int64 }

// Alarm returns the alarm of these limits.
func (lim Limits) Alarm() Alarm {
	return Alarm{eighthAbove(lim.MaxPerStream), eighthAbove(lim.MaxEvents), eighthAbove(lim.MaxBytes)}
}

// eighthAbove returns the threshold of the alarm, at least one above a limit; 0 without one.
func eighthAbove(limit int64) int64 {
	if limit < 0 {
		return 0
	}
	return limit + max(limit/8, 1)
}

// rings reports whether a session, or the stream that has just grown, holds too much.
func (m Alarm) rings(a *Account, s *stream) bool {
	return m.perStream > 0 && int64(len(s.events)) >= m.perStream ||
		m.events > 0 && int64(a.Events) >= m.events || m.bytes > 0 && a.bytes >= m.bytes
}

// watch puts a life that holds too much among those to be trimmed soon.
func (l *Ledger) watch(a *Account, s *stream) {
	if l.Alarm.rings(a, s) {
		l.Over[a.key()] = true
	}
}

// Alarmed reports whether a life of a complete ledger is to be trimmed soon.
func (l *Ledger) Alarmed() bool { return len(l.Over) > 0 && l.Complete }

// TakeAlarms returns the lives that hold too much, never nil, and forgets them: each rings again with its next event
// above the threshold.
func (l *Ledger) TakeAlarms() []string {
	over := slices.AppendSeq([]string{}, maps.Keys(l.Over))
	clear(l.Over)
	return over
}

// RingAgain has lives that could not be trimmed ring again.
func (l *Ledger) RingAgain(lives []string) {
	for _, key := range lives {
		if l.Accounts[key] != nil {
			l.Over[key] = true
		}
	}
}
