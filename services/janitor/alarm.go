package janitor

// alarm is what a session and a stream may hold without being trimmed before the next sweep:
// less than an eighth more than their limits, since each trim is an entry of the log. Not
// positive: any number.
type alarm struct{ perStream, events, bytes int64 }

func (lim limits) alarm() alarm {
	return alarm{eighthAbove(lim.maxPerStream), eighthAbove(lim.maxEvents), eighthAbove(lim.maxBytes)}
}

// eighthAbove returns from where on there is too much, at least one above a limit; 0 without one.
func eighthAbove(limit int64) int64 {
	if limit < 0 {
		return 0
	}
	return limit + max(limit/8, 1)
}

// rings reports whether a session, or the stream that has just grown, holds too much.
func (m alarm) rings(a *account, s *stream) bool {
	return m.perStream > 0 && int64(len(s.events)) >= m.perStream ||
		m.events > 0 && int64(a.events) >= m.events || m.bytes > 0 && a.bytes >= m.bytes
}

// watch puts a life that holds too much on the list of those to be trimmed soon.
func (l *ledger) watch(a *account, s *stream) {
	if !a.over && l.alarm.rings(a, s) {
		a.over = true
		l.over = append(l.over, a.key())
	}
}

// alarmed reports whether a life of a complete ledger is to be trimmed soon.
func (l *ledger) alarmed() bool { return len(l.over) > 0 && l.complete }

// alarms returns the lives to be trimmed soon, and empties their list.
func (l *ledger) alarms() []string {
	over := l.over
	l.over = nil
	return over
}

// ringAgain puts lives that could not be trimmed back on the list.
func (l *ledger) ringAgain(keys []string) {
	for _, key := range keys {
		if a := l.accounts[key]; a != nil && !a.over {
			a.over = true
			l.over = append(l.over, key)
		}
	}
}

// hush says that a life was trimmed, and may ring again. One that had to give up
// nothing, since it has larger limits of its own, is left to the sweeps.
func (l *ledger) hush(key string) {
	if a := l.accounts[key]; a != nil {
		a.over = false
	}
}
