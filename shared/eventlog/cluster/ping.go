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
	// pingSubject is the subject of a request that every account may send to all servers of a cluster.
	// They answer for this account alone, and those without a connection of it only if the request says so.
	pingSubject = "$SYS.REQ.ACCOUNT.PING.STATZ"
	// pingWithin bounds the wait for answers, and pingQuiet that for another one when all
	// known servers have answered.
	pingWithin = 1500 * time.Millisecond
	pingQuiet  = 300 * time.Millisecond
)

// pong is the answer of a server.
type pong struct {
	Server struct{ Name, ID string }
}

func (p pong) from() string {
	if p.Server.ID == "" {
		return ""
	}
	return p.Server.Name
}

// Ping asks all servers of the cluster for their names and IDs, and returns those that answer: all
// of them ran together when they were asked. It takes 300 ms when the known ones answer, and least
// servers in all, else 1.5 s. It fails when no server answers: the user may lack the permission to ask.
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
