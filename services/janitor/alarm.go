package janitor

// alarm is what a session may hold without being trimmed before the next sweep: a
// fortieth more than its limits, so that there is time until it is a twentieth. Not
// positive: any number.
type alarm struct{ events, bytes int64 }

func (lim limits) alarm() alarm {
	return alarm{lim.maxEvents + lim.maxEvents/40, lim.maxBytes + lim.maxBytes/40}
}

// rings reports whether a session holds more.
func (m alarm) rings(a *account) bool {
	return m.events > 0 && int64(a.events) > m.events || m.bytes > 0 && a.bytes > m.bytes
}

// watch puts a session that holds too much on the list of those to be trimmed soon.
func (l *ledger) watch(name string, a *account) {
	if !a.over && l.alarm.rings(a) {
		a.over = true
		l.over = append(l.over, name)
	}
}

// alarmed reports whether a session of a complete ledger is to be trimmed soon.
func (l *ledger) alarmed() bool { return len(l.over) > 0 && l.complete }

// alarms returns the sessions to be trimmed soon, and empties their list.
func (l *ledger) alarms() []string {
	over := l.over
	l.over = nil
	return over
}

// hush says that a session was trimmed, and may ring again. One that had to give up
// nothing, since it has larger limits of its own, is left to the sweeps.
func (l *ledger) hush(name string) {
	if a := l.accounts[name]; a != nil {
		a.over = false
	}
}
