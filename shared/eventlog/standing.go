package eventlog

import "time"

// Standing is what is known of somebody who follows a partition and may stand still. The
// zero Standing knows nothing. It belongs to one goroutine.
type Standing struct {
	at   uint64
	from time.Time // zero while there is nothing behind it
}

// Since returns for how long who follows has been at a place though it should have got to
// end.
func (s *Standing) Since(at, end uint64, now time.Time) time.Duration {
	switch {
	case end <= at:
		*s = Standing{}
	case s.from.IsZero() || s.at != at:
		*s = Standing{at, now}
	default:
		return now.Sub(s.from)
	}
	return 0
}
