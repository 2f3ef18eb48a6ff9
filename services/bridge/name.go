package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/event"
	"rejoin/shared/inbox"
	"rejoin/shared/natsconn"
	"rejoin/shared/rpc"
)

const (
	aliveEvery = time.Second // between two questions
	// standbyQuestions is how many questions in a row must have no answer until a standby takes the name.
	standbyQuestions = 3
	nameEvery        = 5 * time.Second // between two looks at whose the name is
	// nameTTL is how long the bucket knows whose a name is, without renewal.
	nameTTL = time.Hour
	// writeTimeout bounds a request to the bucket.
	writeTimeout = 2 * time.Second
)

// aliveSubject is where a bridge of a name says that it is there.
func aliveSubject(name string) string { return "mcp.rpc.b." + event.Token(name) }

// errReplaced ends a bridge whose name another one has taken. That one got no answer from it: it was
// paused, or cut off from NATS. Of two, each would get some of the requests of a session, and know
// only the calls of those.
var errReplaced = errors.New("another bridge has taken over, with the same --bridge-name")

// bridgeName is the name of this bridge, which one bridge has at a time.
type bridgeName struct {
	host     *host
	js       jetstream.JetStream
	id       string      // of this run, which tells two bridges of one name apart
	replaced func(error) // is called with [errReplaced]
}

// newName returns the bridge's name. When another bridge has taken it, replaced is called.
func newName(h *host, js jetstream.JetStream, replaced func(error)) *bridgeName {
	return &bridgeName{host: h, js: js, id: rand.Text(), replaced: replaced}
}

// claim waits until no other bridge of this name answers, since two would get in each other's
// way. Then the name is this bridge's, until another one takes it: see [bridgeName.keep]. The function
// that it returns ends the answers of this one.
//
// After a restart of NATS a bridge that has answered may be about to connect again: a standby asks more
// than once.
func (n *bridgeName) claim(ctx context.Context) (leave func(), err error) {
	told, unanswered := false, 0
	for {
		err := isAlive(ctx, n.host, n.host.name)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
			if unanswered++; !told || unanswered == standbyQuestions {
				return n.hold(ctx)
			}
		case err == nil:
			unanswered = 0
			if !told {
				told = true
				n.host.log.Warn("another bridge has the same --bridge-name; this one waits until that has ended", "name", n.host.name)
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-n.host.times.after(aliveEvery):
		}
	}
}

// hold takes the name. The bucket says whose it is: the newest writer's. A bridge that had it before
// is told to look there.
func (n *bridgeName) hold(ctx context.Context) (leave func(), err error) {
	nc, subject, other := n.host.backend.Conn, aliveSubject(n.host.name), make(chan struct{}, 1)
	sub, err := nc.Subscribe(subject, func(msg *nats.Msg) {
		switch {
		case inbox.Is(msg.Reply):
			_ = msg.Respond(nil)
		case string(msg.Data) != n.id:
			select {
			case other <- struct{}{}:
			default:
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("cannot listen on NATS: %w", err)
	}
	leave = func() { _ = sub.Unsubscribe() } // the connection may be closed already
	if err := retry(ctx, func() error { return n.put(ctx) }); err != nil {
		leave()
		return nil, err
	}
	_ = nc.Publish(subject, []byte(n.id)) // else the other one looks by itself
	n.host.run(func() { n.keep(other) })
	return leave, nil
}

// keep looks now and then whether the name is this bridge's still, and at once when another one says
// that it has taken it, or when the connection is made.
func (n *bridgeName) keep(other <-chan struct{}) {
	for n.host.life.Err() == nil {
		ctx, done := natsconn.While(n.host.life, n.host.backend.Conn)
		if err := n.check(ctx); errors.Is(err, errReplaced) {
			n.replaced(err)
		}
		select {
		case <-ctx.Done():
		case <-other:
		case <-time.After(nameEvery):
		}
		done()
	}
}

// check returns errReplaced if another bridge has the name. Other errors say that this is unknown.
func (n *bridgeName) check(ctx context.Context) error {
	id, written, err := n.holder(ctx)
	switch {
	case err != nil:
		return err
	case id == "", id == n.id && time.Since(written) > nameTTL/2:
		return n.put(ctx)
	case id != n.id:
		return errReplaced
	default:
		return nil
	}
}

// nameKey is where the bucket says which bridge has a name: the value is the ID of its run, which is
// no record of a call.
func nameKey(name string) string { return "=bridge." + event.Token(name) }

// put has the bucket say that the name is this bridge's.
func (n *bridgeName) put(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return bucket.PutFor(ctx, n.js, rpc.CallsBucket, nameKey(n.host.name), []byte(n.id), nameTTL)
}

// holder returns the ID of the bridge that has the name, by the leader of the bucket, and since when
// that is written; an empty one for none.
func (n *bridgeName) holder(ctx context.Context) (id string, written time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	value, written, err := bucket.Last(ctx, n.js.Conn(), rpc.CallsBucket, nameKey(n.host.name))
	return string(value), written, err
}

// isAlive asks a bridge of a name whether it is there. The error is that of NATS.
func isAlive(ctx context.Context, h *host, name string) error {
	ctx, cancel := context.WithTimeout(ctx, h.times.alive)
	defer cancel()
	_, err := h.backend.Conn.RequestWithContext(ctx, aliveSubject(name), nil)
	return err
}
