package ingest

import (
	"fmt"
	"sync"

	"rejoin/shared/quota"
	"rejoin/shared/session"
)

// The reasons why a session is not opened, as the metric's label.
const (
	refusedSessions = "sessions"
	refusedMetadata = "metadata"
	refusedShare    = "share"
	refusedRate     = "rate"
)

// sessionsError is returned when there are as many sessions, or as much metadata, as there may
// be, or as one holder may have.
type sessionsError struct {
	reason string
	flag   string // the limit
	limit  int64
}

func (e *sessionsError) Error() string {
	if e.reason == refusedShare {
		return fmt.Sprintf("While more than three quarters of %s (%d) are taken, nobody gets more than a quarter.", e.flag, e.limit)
	}
	return fmt.Sprintf("%s (%d) is reached; a closed session counts until its name is free again.", e.flag, e.limit)
}

// sessionLimits bound the sessions that there are, by the copy of the registry and what this
// ingest is opening. A session counts twice for the moment in which it is in both; so this ingest
// never exceeds a limit. Several ingests may, by what they open at the same moment. It is safe
// for concurrent use.
type sessionLimits struct {
	// usage returns what all sessions that there are take, and those of a holder; see
	// [session.Registry.Usage].
	usage              func(session.Holder) (all, own session.Usage)
	sessions, metadata int64 // in bytes; below 1: any number

	mu      sync.Mutex
	opening map[session.Holder]session.Usage // by this ingest
	all     session.Usage                    // the sum of these
}

func newSessionLimits(sessions, metadata int64, usage func(session.Holder) (all, own session.Usage)) *sessionLimits {
	return &sessionLimits{usage: usage, sessions: sessions, metadata: metadata, opening: map[session.Holder]session.Usage{}}
}

// enter makes room for a session; leave follows when it is in the copy of the registry, or was
// not opened. The error is a [*sessionsError].
func (l *sessionLimits) enter(rec session.Record) (leave func(), err error) {
	return l.grow(rec.Holder(), rec.Usage())
}

// grow is enter for what a session takes, or takes more.
func (l *sessionLimits) grow(holder session.Holder, more session.Usage) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all, own := l.usage(holder)
	all, own = all.Plus(l.all), own.Plus(l.opening[holder])
	for _, limit := range []struct {
		flag, reason       string
		capacity           int64
		all, own, needsNow int64
	}{
		{"--max-sessions", refusedSessions, l.sessions, all.Sessions, own.Sessions, more.Sessions},
		{"--max-metadata-bytes", refusedMetadata, l.metadata, all.MetadataBytes, own.MetadataBytes, more.MetadataBytes},
	} {
		switch {
		case limit.capacity < 1 || limit.needsNow == 0:
		case limit.all+limit.needsNow > limit.capacity:
			return nil, &sessionsError{limit.reason, limit.flag, limit.capacity}
		case !holder.Nobody() && !quota.Within(limit.capacity, limit.all, limit.own, limit.needsNow):
			return nil, &sessionsError{refusedShare, limit.flag, limit.capacity}
		}
	}
	l.count(holder, more)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.count(holder, session.Usage{Sessions: -more.Sessions, MetadataBytes: -more.MetadataBytes})
	}, nil
}

// count counts what is being opened. The caller holds the lock.
func (l *sessionLimits) count(of session.Holder, more session.Usage) {
	l.all = l.all.Plus(more)
	now := l.opening[of].Plus(more)
	if now == (session.Usage{}) {
		delete(l.opening, of)
		return
	}
	l.opening[of] = now
}

// share returns how full the fuller of both limits is, from 0 to 1; 0 without limits.
func (l *sessionLimits) share() (full float64) {
	all, _ := l.usage(session.Holder{})
	if l.sessions > 0 {
		full = float64(all.Sessions) / float64(l.sessions)
	}
	if l.metadata > 0 {
		full = max(full, float64(all.MetadataBytes)/float64(l.metadata))
	}
	return full
}
