package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// pingSubject is what every account may ask all servers of a cluster, and these answer
	// for this account alone. Those without a connection of it answer when they are told to.
	pingSubject = "$SYS.REQ.ACCOUNT.PING.STATZ"
	pingRequest = `{"include_unused":true}`
	// pingWithin is how long answers are waited for, and pingQuiet how long for another one
	// when all that are known have answered.
	pingWithin = 1500 * time.Millisecond
	pingQuiet  = 300 * time.Millisecond
)

// Ping asks all servers of the cluster who they are, and returns those that answer: all
// of them were there together when they were asked. It takes 300 ms when those that are
// known answer, else 1.5 s. It fails when no server answers: the user may lack the permission to ask.
func Ping(ctx context.Context, nc *nats.Conn, known Servers) (Servers, error) {
	ctx, cancel := context.WithTimeout(ctx, pingWithin)
	defer cancel()
	names := slices.Collect(maps.Keys(known))
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be closed already
	if err := nc.PublishRequest(pingSubject, sub.Subject, []byte(pingRequest)); err != nil {
		return nil, err
	}
	there := Servers{}
	for {
		wait, done := ctx, context.CancelFunc(func() {})
		if len(there) > 0 && there.count(names) == len(names) {
			wait, done = context.WithTimeout(ctx, pingQuiet)
		}
		msg, err := sub.NextMsgWithContext(wait)
		done()
		if err != nil {
			break
		}
		if name, id, ok := parseAnswer(msg.Data); ok {
			there[name] = id
		}
	}
	if len(there) == 0 {
		return nil, errors.New("no server answers on " + pingSubject)
	}
	return there, nil
}

// parseAnswer reads what a server answers.
func parseAnswer(data []byte) (name, id string, ok bool) {
	var answer struct {
		Server struct{ Name, ID string }
	}
	err := json.Unmarshal(data, &answer)
	name, id = answer.Server.Name, answer.Server.ID
	return name, id, err == nil && name != "" && id != ""
}
