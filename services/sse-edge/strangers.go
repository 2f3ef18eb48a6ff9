package edge

import (
	"context"
	"errors"
	"time"

	"rejoin/shared/session"
)

const (
	// learnWithin bounds how long an event of an unknown session may hold up a tail.
	learnWithin = 250 * time.Millisecond
	// learnAgain is how long a session that is not registered is taken not to be.
	learnAgain = time.Second
	// maxStrangers bounds how many such sessions are remembered.
	maxStrangers = 4096
)

// strangers asks for sessions that the registry's copy does not know. It belongs to
// one tail.
type strangers struct {
	sessions *session.Registry
	// until says how long a session is believed not to be registered.
	until map[string]time.Time
	// again is when the registry is asked again after it did not answer.
	again time.Time
}

// record returns a session's record, or nothing while it is not registered. Ingest
// registers a session before it publishes, but the registry's copy here may be slower
// than the tail, so a stranger is asked for, once a second.
func (s *strangers) record(name string) session.Record {
	if rec, ok := s.sessions.Session(name); ok {
		return rec
	}
	now := time.Now()
	if now.Before(s.again) || now.Before(s.until[name]) {
		return session.Record{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), learnWithin)
	defer cancel()
	rec, err := s.sessions.Learn(ctx, name)
	switch {
	case errors.Is(err, session.ErrNotFound):
		if s.until == nil || len(s.until) >= maxStrangers {
			s.until = map[string]time.Time{}
		}
		s.until[name] = now.Add(learnAgain)
	case err != nil:
		s.again = now.Add(learnAgain)
	}
	return rec
}
