package system

import (
	"context"

	"rejoin/bench/load"
)

// Rejoin is the standalone program; messages are published straight to its log,
// without waiting for each one's acknowledgement, so that publishing is not the limit.
type Rejoin struct {
	*Program
	*load.LogPublisher
}

// FollowAll is the flag of an edge that follows all partitions, from the start.
const FollowAll = "--partition-linger=-1"

// StartRejoin starts the standalone program on a data folder, or on a new one when
// that is "".
func StartRejoin(ctx context.Context, p *Programs, dir string, args ...string) (*Rejoin, error) {
	s, err := Start(ctx, p, dir, args...)
	if err != nil {
		return nil, err
	}
	publisher, err := load.NewLogPublisher(s.NATS)
	if err != nil {
		s.Stop()
		return nil, err
	}
	return &Rejoin{Program: s, LogPublisher: publisher}, nil
}

// PIDs is the process of the standalone program.
func (r *Rejoin) PIDs() []int { return []int{r.PID()} }

// Close closes the connection and ends the program.
func (r *Rejoin) Close() {
	r.Conn.Close()
	r.Stop()
}
