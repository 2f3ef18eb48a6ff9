package ledger

// Alarm is from how many events or bytes on a session or stream is trimmed before the next sweep: an
// eighth above its limit, at least one above, since each trim is an entry of the log. Not positive:
// never.
type Alarm struct{ perStream, events, bytes int64 }

// Alarm returns the alarm of these limits.
func (lim Limits) Alarm() Alarm {
	return Alarm{eighthAbove(lim.MaxPerStream), eighthAbove(lim.MaxEvents), eighthAbove(lim.MaxBytes)}
}

// eighthAbove returns from where on there is too much, at least one above a limit; 0 without one.
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

// watch puts a life that holds too much on the list of those to be trimmed soon.
func (l *Ledger) watch(a *Account, s *stream) {
	if !a.Over && l.Alarm.rings(a, s) {
		a.Over = true
		l.Over = append(l.Over, a.key())
	}
}

// Alarmed reports whether a life of a complete ledger is to be trimmed soon.
func (l *Ledger) Alarmed() bool { return len(l.Over) > 0 && l.Complete }

// Alarms returns the lives to be trimmed soon, and empties their list.
func (l *Ledger) Alarms() []string {
	over := l.Over
	l.Over = nil
	return over
}

// RingAgain puts lives that could not be trimmed back on the list.
func (l *Ledger) RingAgain(keys []string) {
	listed := map[string]bool{}
	for _, key := range l.Over {
		listed[key] = true
	}
	for _, key := range keys {
		if a := l.Accounts[key]; a != nil && !listed[key] {
			a.Over = true
			l.Over = append(l.Over, key)
		}
	}
}

// Hush says that lives were trimmed, and may ring again. One that had to give up
// nothing, since it has larger limits of its own, is left to the sweeps.
func (l *Ledger) Hush(keys []string) {
	for _, key := range keys {
		if a := l.Accounts[key]; a != nil {
			a.Over = false
		}
	}
}
