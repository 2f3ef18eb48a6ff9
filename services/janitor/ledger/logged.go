package ledger

import "time"

// LoggedSession has the opening and the lives of a session's name in a complete ledger.
type LoggedSession struct {
	Opening Opening // the newest; sequence 0 when the log has none
	Lives   []LoggedLife
}

// LoggedLife is a life that has entries in the log.
type LoggedLife struct {
	Life          string
	first         uint64 // its oldest entry
	Events        bool
	sealed, ended bool
	unsealed      bool      // it has an end and no seal
	since         time.Time // when the ledger got the seal
}

// Logged enters the opening and the lives of each session.
func (l *Ledger) Logged(all map[string]LoggedSession) {
	for name := range l.openings {
		all[name] = LoggedSession{Opening: l.Opening(name)}
	}
	for _, a := range l.Accounts {
		s := all[a.Session]
		if s.Add(a.Life, a) {
			all[a.Session] = s
		}
	}
}

// Add adds a life, if the log has entries of it besides trims, and reports whether it
// has.
func (s *LoggedSession) Add(life string, a *Account) bool {
	if a == nil || a.bare() {
		return false
	}
	l := LoggedLife{Life: life, first: a.first, Events: a.Events > 0, sealed: a.markers.sealed(), ended: a.markers.ended()}
	if m := a.markers; m != nil {
		l.since, l.unsealed = m.seal.at, l.ended && m.seal.seq == 0
	}
	s.Lives = append(s.Lives, l)
	return true
}
