package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/scatter"
)

const (
	// pingSubject is what every account may ask all servers of a cluster, and these answer
	// for this account alone. Those without a connection of it answer when they are told to.
	pingSubject = "$SYS.REQ.ACCOUNT.PING.STATZ"
	// pingWithin is how long answers are waited for, and pingQuiet how long for another one
	// when all that are known have answered.
	pingWithin = 1500 * time.Millisecond
	pingQuiet  = 300 * time.Millisecond
)

// pong is what a server answers.
type pong struct {
	Server struct{ Name, ID string }
}

func (p pong) from() string {
	if p.Server.ID == "" {
		return ""
	}
	return p.Server.Name
}

// Ping asks all servers of the cluster who they are, and returns those that answer: all
// of them were there together when they were asked. It takes 300 ms when those that are
// known answer, and least servers in all, else 1.5 s. It fails when no server answers: the user may lack the
// permission to ask.
func Ping(ctx context.Context, nc *nats.Conn, known Servers, least int) (Servers, error) {
	there, names := Servers{}, slices.Collect(maps.Keys(known))
	_, err := scatter.AskUntil(ctx, nc, pingSubject, map[string]bool{"include_unused": true}, pong.from, func(all []pong) bool {
		newest := all[len(all)-1].Server
		there[newest.Name] = newest.ID
		return there.count(names) == len(names) && len(there) >= least
	}, pingQuiet, pingWithin)
	if len(there) == 0 {
		return nil, errors.Join(errors.New("no server answers on "+pingSubject), err)
	}
	return there, nil
}
