package system

import (
	"context"

	"rejoin/bench/load"
)

// Server is something that broadcasts: Rejoin, a raw server, or a peer.
type Server interface {
	// Target is where clients connect.
	Target() load.Target
	load.Sink
	// Close ends it.
	Close()
}

// Contender is a server that is measured; prefix stands before its figures.
type Contender struct {
	Prefix string
	Start  func(ctx context.Context, p *Programs) (Server, error)
}

// The prefixes of the contenders. Rejoin's figures have none.
const (
	OfRejoin   = ""
	OfRaw      = "raw_"
	OfRawBatch = "rawbatch_"
	OfNchan    = "nchan_"
)

// Contenders returns those with the prefixes, except Nchan when it is not installed.
func (p *Programs) Contenders(prefixes ...string) []Contender {
	var all []Contender
	for _, prefix := range prefixes {
		c := Contender{Prefix: prefix}
		switch prefix {
		case OfRejoin:
			c.Start = func(ctx context.Context, p *Programs) (Server, error) { return StartRejoin(ctx, p, "") }
		case OfRaw:
			c.Start = func(ctx context.Context, _ *Programs) (Server, error) { return StartRaw(ctx, RawEach) }
		case OfRawBatch:
			c.Start = func(ctx context.Context, _ *Programs) (Server, error) { return StartRaw(ctx, rawBatch) }
		case OfNchan:
			if p.nginx == "" {
				continue
			}
			c.Start = func(ctx context.Context, p *Programs) (Server, error) { return StartNchan(ctx, p) }
		}
		all = append(all, c)
	}
	return all
}

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
