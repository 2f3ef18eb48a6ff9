package main

import (
	"context"
	"strings"

	"rejoin/bench/load"
)

// server is something that broadcasts: Rejoin, a raw server, or a peer.
type server interface {
	// target is where clients connect.
	target() load.Target
	load.Sink
	close()
}

// contender is a server that is measured; prefix stands before its figures.
type contender struct {
	prefix string
	start  func(ctx context.Context, p *programs) (server, error)
}

// The prefixes of the contenders. Rejoin's figures have none.
const (
	ofRejoin   = ""
	ofRaw      = "raw_"
	ofRawBatch = "rawbatch_"
	ofNchan    = "nchan_"
)

// contenders returns those with the prefixes, except Nchan when it is not installed.
func (p *programs) contenders(prefixes ...string) []contender {
	var all []contender
	for _, prefix := range prefixes {
		c := contender{prefix: prefix}
		switch prefix {
		case ofRejoin:
			c.start = func(ctx context.Context, p *programs) (server, error) { return startRejoin(ctx, p, "") }
		case ofRaw:
			c.start = func(ctx context.Context, _ *programs) (server, error) { return startRaw(ctx, rawEach) }
		case ofRawBatch:
			c.start = func(ctx context.Context, _ *programs) (server, error) { return startRaw(ctx, rawBatch) }
		case ofNchan:
			if p.nginx == "" {
				continue
			}
			c.start = func(ctx context.Context, p *programs) (server, error) { return startNchan(ctx, p) }
		}
		all = append(all, c)
	}
	return all
}

// rejoin is the standalone program; messages are published straight to its log,
// without waiting for each one's acknowledgement, so that publishing is not the limit.
type rejoin struct {
	*system
	*load.LogPublisher
}

// followAll is the flag of an edge that follows all partitions, from the start.
const followAll = "--partition-linger=-1"

// startRejoin starts the standalone program on a data folder, or on a new one when
// that is "".
func startRejoin(ctx context.Context, p *programs, dir string, args ...string) (*rejoin, error) {
	s, err := start(ctx, p, dir, args...)
	if err != nil {
		return nil, err
	}
	publisher, err := load.NewLogPublisher(s.nats)
	if err != nil {
		s.stop()
		return nil, err
	}
	return &rejoin{system: s, LogPublisher: publisher}, nil
}

// edgeTarget is an edge, or the standalone program, to clients that begin now, or at their event ID.
func edgeTarget(s *system) load.Target {
	return load.Target{Addr: strings.TrimPrefix(s.edge, "http://"), Sequenced: true, Path: func(stream int) string { return load.EventsPath(stream) + "?from=now" }}
}

func (r *rejoin) target() load.Target { return edgeTarget(r.system) }

func (r *rejoin) PIDs() []int { return []int{r.pid()} }

func (r *rejoin) close() {
	r.Conn.Close()
	r.stop()
}
