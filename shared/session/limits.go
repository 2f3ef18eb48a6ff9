package session

import (
	"fmt"
	"sync"

	"rejoin/shared/flagtype"
	"rejoin/shared/quota"
)

// LimitsConfig are the flags of the services that open sessions.
type LimitsConfig struct {
	// MaxSessions is how many sessions there may be, open or closed, of this service and all
	// others: the records of all are in the memory of each service. MaxMetadataBytes bounds
	// their metadata and members together, in bytes as stored, which are in the memory of
	// janitors. Once three quarters of one of them are taken, an owner that has more than a
	// quarter gets no new session; without access control a client address, as far as this
	// service has opened sessions for it since its start. -1, and 0, which no flag gives: no limit.
	// Default: 30,000 and 16 MiB.
	MaxSessions      int64          `type:"limit" default:"30000" help:"Maximum number of sessions, open or closed; once three quarters are in use, no owner gets more than a quarter; -1 for unlimited." placeholder:"N"`
	MaxMetadataBytes flagtype.Bytes `type:"limit" default:"16MiB" help:"Maximum total size of the metadata and members of all sessions, shared like --max-sessions; -1 for unlimited." placeholder:"BYTES"`
}

// Half returns the limits halved, rounded up; no limit stays no limit.
func (c LimitsConfig) Half() LimitsConfig {
	return LimitsConfig{c.MaxSessions - c.MaxSessions/2, c.MaxMetadataBytes - c.MaxMetadataBytes/2}
}

// Validate returns an error that names the first flag whose value makes no sense.
func (c LimitsConfig) Validate() error {
	switch {
	case c.MaxSessions < -1:
		return fmt.Errorf("--max-sessions must be -1 or more, not %d", c.MaxSessions)
	case c.MaxMetadataBytes < -1:
		return fmt.Errorf("--max-metadata-bytes must be -1 or more, not %d", c.MaxMetadataBytes)
	}
	return nil
}

// The reasons of a [*FullError].
const (
	FullSessions = "sessions"
	FullMetadata = "metadata"
	FullShare    = "share"
)

// FullError is returned when the number of sessions, or the size of their metadata, has reached
// the limit, or the share of one holder.
type FullError struct {
	Reason string
	flag   string // the limit
	limit  int64
}

func (e *FullError) Error() string {
	if e.Reason == FullShare {
		return fmt.Sprintf("While more than three quarters of %s (%d) are taken, no client gets more than a quarter.", e.flag, e.limit)
	}
	return fmt.Sprintf("%s (%d) is reached; a closed session counts until its name is free again.", e.flag, e.limit)
}

// Limits bound the sessions, by the copy of the registry and the sessions that this
// service is opening. A session counts twice for the moment in which it is in both; so this
// service never exceeds a limit. Several services may, by the sessions that they open at the same moment.
// It is safe for concurrent use.
type Limits struct {
	// usage returns the usage of all sessions, and of those of a holder; see
	// [Registry.Usage].
	usage func(Holder) (all, own Usage)
	cfg   LimitsConfig

	mu      sync.Mutex
	opening map[Holder]Usage // by this service
	all     Usage            // the sum of these
}

// NewLimits returns limits; usage is [Registry.Usage].
func NewLimits(cfg LimitsConfig, usage func(Holder) (all, own Usage)) *Limits {
	return &Limits{usage: usage, cfg: cfg, opening: map[Holder]Usage{}}
}

// Enter makes room for a session; the caller calls leave when the session is in the copy of
// the registry, or was not opened. The error is a [*FullError].
func (l *Limits) Enter(rec Record) (leave func(), err error) {
	return l.Grow(rec.Holder(), rec.Usage())
}

// Grow is Enter for the usage of a session, or for an increase of it.
func (l *Limits) Grow(holder Holder, more Usage) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all, own := l.usage(holder)
	all, own = all.Plus(l.all), own.Plus(l.opening[holder])
	for _, limit := range []struct {
		flag, reason       string
		capacity           int64
		all, own, needsNow int64
	}{
		{"--max-sessions", FullSessions, l.cfg.MaxSessions, all.Sessions, own.Sessions, more.Sessions},
		{"--max-metadata-bytes", FullMetadata, int64(l.cfg.MaxMetadataBytes), all.MetadataBytes, own.MetadataBytes, more.MetadataBytes},
	} {
		switch {
		case limit.capacity < 1 || limit.needsNow == 0:
		case limit.all+limit.needsNow > limit.capacity:
			return nil, &FullError{limit.reason, limit.flag, limit.capacity}
		case !holder.Anonymous() && !quota.Within(limit.capacity, limit.all, limit.own, limit.needsNow):
			return nil, &FullError{FullShare, limit.flag, limit.capacity}
		}
	}
	l.count(holder, more)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.count(holder, Usage{Sessions: -more.Sessions, MetadataBytes: -more.MetadataBytes})
	}, nil
}

// count counts a session that is being opened. The caller holds the lock.
func (l *Limits) count(of Holder, more Usage) {
	l.all = l.all.Plus(more)
	now := l.opening[of].Plus(more)
	if now == (Usage{}) {
		delete(l.opening, of)
		return
	}
	l.opening[of] = now
}

// Share returns how full the fuller of both limits is, from 0 to 1; 0 without limits.
func (l *Limits) Share() (full float64) {
	all, _ := l.usage(Holder{})
	if l.cfg.MaxSessions > 0 {
		full = float64(all.Sessions) / float64(l.cfg.MaxSessions)
	}
	if l.cfg.MaxMetadataBytes > 0 {
		full = max(full, float64(all.MetadataBytes)/float64(l.cfg.MaxMetadataBytes))
	}
	return full
}
