// Package standby lets one bridge of each name run, while the others wait (docs/adr/0039).
package standby

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/retry"
	"rejoin/shared/bucket"
	"rejoin/shared/event"
	"rejoin/shared/inbox"
	"rejoin/shared/natsconn"
	"rejoin/shared/rpc"
)

const (
	// AliveEvery is the time between two questions.
	AliveEvery = time.Second
	// StandbyQuestions is how many questions in a row must have no answer until a standby takes the name.
	StandbyQuestions = 3
	nameEvery        = 5 * time.Second // between two looks at the name's holder
	// nameTTL is how long the bucket keeps the holder of a name, without renewal.
	nameTTL = time.Hour
	// writeTimeout bounds a request to the bucket.
	writeTimeout = 2 * time.Second
)

// AliveSubject is where a bridge of a name answers that it runs.
func AliveSubject(name string) string { return "mcp.rpc.b." + event.Token(name) }

// Name is the name of this bridge, which one bridge has at a time.
type Name struct {
	host     *host.Host
	js       jetstream.JetStream
	id       string      // of this run, which tells two bridges of one name apart
	replaced func(error) // is called with [host.ErrReplaced]
}

// New returns the bridge's name. When another bridge has taken it, replaced is called.
func New(h *host.Host, js jetstream.JetStream, replaced func(error)) *Name {
	return &Name{host: h, js: js, id: rand.Text(), replaced: replaced}
}

// Claim waits until no other bridge of this name answers, since two would get in each other's
// way. Then the name is this bridge's, until another one takes it: see [Name.keep]. leave ends the
// answers of this bridge, and gives the name up.
//
// After a restart of NATS a bridge that has answered may be about to reconnect: a standby asks more
// than once.
func (n *Name) Claim(ctx context.Context) (leave func(), err error) {
	told, unanswered := false, 0
	for {
		err := IsAlive(ctx, n.host, n.host.Name)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
			if unanswered++; !told || unanswered == StandbyQuestions || n.isFree(ctx) {
				return n.hold(ctx)
			}
		case err == nil:
			unanswered = 0
			if !told {
				told = true
				n.host.Logger.Warn("another bridge has the same --bridge-name; this one waits until that has ended", "name", n.host.Name)
			}
		}
		if !n.host.Pause(ctx, AliveEvery) {
			return nil, ctx.Err()
		}
	}
}

// hold takes the name in the bucket, where the newest writer has it. The previous holder receives a
// message, and looks there.
func (n *Name) hold(ctx context.Context) (leave func(), err error) {
	nc, subject, other := n.host.Backend.Conn, AliveSubject(n.host.Name), make(chan struct{}, 1)
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
	leave = func() {
		_ = sub.Unsubscribe() // the connection may be closed already
		n.release()
	}
	n.host.Pauses.Start()
	if err := retry.Do(ctx, func() error { return n.put(ctx) }); err != nil {
		leave()
		return nil, err
	}
	_ = nc.Publish(subject, []byte(n.id)) // else the other one looks by itself
	n.host.Go(func() { n.host.Pauses.Run(n.host.Life) })
	n.host.Go(func() { n.keep(other) })
	return leave, nil
}

// isFree reports whether the bridge that had the name has given it up.
func (n *Name) isFree(ctx context.Context) bool {
	id, _, _, err := n.holder(ctx)
	return err == nil && id == ""
}

// release frees the name in the bucket, if it is this bridge's: a standby need not ask again.
func (n *Name) release() {
	if !n.host.Backend.Conn.IsConnected() {
		return
	}
	ctx, done := natsconn.While(context.Background(), n.host.Backend.Conn)
	defer done()
	if id, _, revision, err := n.holder(ctx); err == nil && id == n.id {
		_ = n.set(ctx, "", jetstream.WithExpectLastSequencePerSubject(revision)) // else it asks three times
	}
}

// keep checks now and then whether this bridge still has the name, and at once when another one reports
// that it has taken the name, or when the connection is lost or made.
func (n *Name) keep(other <-chan struct{}) {
	for n.host.Life.Err() == nil {
		ctx, done := natsconn.While(n.host.Life, n.host.Backend.Conn)
		if err := n.Check(ctx); errors.Is(err, host.ErrReplaced) {
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

// Check returns [host.ErrReplaced] if another bridge has the name. Other errors mean that this is unknown.
func (n *Name) Check(ctx context.Context) error {
	seen := n.host.Pauses.Seen()
	id, written, revision, err := n.holder(ctx)
	switch {
	case err != nil:
		return err
	case id == "", id == n.id && time.Since(written) > nameTTL/2: // unless another bridge takes the name at this moment
		err = n.put(ctx, jetstream.WithExpectLastSequencePerSubject(revision))
	case id != n.id:
		return host.ErrReplaced
	}
	if err == nil {
		n.host.Pauses.Confirm(seen)
	}
	return err
}

// Confirm returns nil when the name is this bridge's. It asks the bucket only after a pause of the process:
// sessions that another bridge took over during the pause are not this one's any more. Errors are those of [Name.Check].
func (n *Name) Confirm(ctx context.Context) error {
	if n.host.Pauses.IsConfirmed() {
		return nil
	}
	err := n.Check(ctx)
	if errors.Is(err, host.ErrReplaced) {
		n.replaced(err)
	}
	return err
}

// nameKey is the key of a name's holder in the bucket: the value is the ID of the holder's run, which is
// no record of a call.
func nameKey(name string) string { return "=bridge." + event.Token(name) }

// put makes this bridge the holder of the name in the bucket.
func (n *Name) put(ctx context.Context, opts ...jetstream.PublishOpt) error {
	return n.set(ctx, n.id, opts...)
}

// set writes the ID of the name's holder to the bucket; an empty ID for none.
func (n *Name) set(ctx context.Context, id string, opts ...jetstream.PublishOpt) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return bucket.PutFor(ctx, n.js, rpc.CallsBucket, nameKey(n.host.Name), []byte(id), nameTTL, opts...)
}

// holder asks the leader of the bucket for the ID of the bridge that has the name, the time at which that was
// written, and its revision; an empty ID for none.
func (n *Name) holder(ctx context.Context) (id string, written time.Time, revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	value, written, revision, err := bucket.Last(ctx, n.js.Conn(), rpc.CallsBucket, nameKey(n.host.Name))
	return string(value), written, revision, err
}

// IsAlive asks whether a bridge of a name runs. The error is that of NATS.
func IsAlive(ctx context.Context, h *host.Host, name string) error {
	ctx, cancel := context.WithTimeout(ctx, h.Times.Alive)
	defer cancel()
	_, err := h.Backend.Conn.RequestWithContext(ctx, AliveSubject(name), nil)
	return err
}
