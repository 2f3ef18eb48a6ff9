// Package natsconn ends requests to NATS with the connection: a request that was in flight
// when the connection was lost is never answered, and its caller would wait until the time-out, long
// after the client has reconnected.
package natsconn

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrChanged is the cause of a context that ended with the connection.
var ErrChanged = errors.New("the connection to NATS was lost or made")

// While returns a context that ends with ctx, or when the connection is lost or made.
// The function that it returns must be called; it waits for the goroutine that watches.
func While(ctx context.Context, nc *nats.Conn) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	changed := nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-changed:
			cancel(ErrChanged)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-watched
		nc.RemoveStatusListener(changed)
	}
}

// Server is the server that a connection is to, or was to last. It is safe for
// concurrent use.
type Server struct {
	nc        *nats.Conn
	clustered atomic.Bool
}

// NewServer looks at a connection for the first time.
func NewServer(nc *nats.Conn) *Server {
	s := &Server{nc: nc}
	s.Clustered()
	return s
}

// Clustered reports whether the server is one of a cluster. A stream and its consumers may
// then lie on other servers than the connected one, and on different ones: those start and
// stop without a change of the connection. Without a connection it returns the result of
// the last call with one.
func (s *Server) Clustered() bool {
	id := s.nc.ConnectedServerId()
	if now := s.nc.ConnectedClusterName() != ""; id != "" && id == s.nc.ConnectedServerId() {
		s.clustered.Store(now)
	}
	return s.clustered.Load()
}

const (
	// answerWithin is how long Repeat waits for the first answer.
	answerWithin = time.Second
	// repeatWithin bounds Repeat if its context has no end; it is nats.go's own bound of a request.
	repeatWithin = 5 * time.Second
)

// Repeat makes a request that can be repeated. In a cluster it makes it again after a second without an
// answer, and then every two seconds until ctx ends: while a stream, or JetStream itself, changes its
// leader, no server answers requests to the leader (nats-server's jsMsgGetRequest).
func (s *Server) Repeat(ctx context.Context, request func(ctx context.Context) error) error {
	if !s.Clustered() {
		return request(ctx)
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, repeatWithin)
		defer cancel()
	}
	for wait := answerWithin; ; wait = 2 * answerWithin {
		once, done := context.WithTimeout(ctx, wait)
		err := request(once)
		unanswered := once.Err() != nil && ctx.Err() == nil
		done()
		if err == nil || !unanswered {
			return err
		}
	}
}

// Code returns the code of JetStream's API that an error has; 0 for none.
func Code(err error) jetstream.ErrorCode {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.ErrorCode
	}
	return 0
}

// Passes reports whether an error of JetStream passes once a leader was elected or a server is up
// again: no leader (10008, 10009), too
// few servers for a stream's replicas (10005), a stream or consumer that is offline
// (10118, 10119); or that there is no JetStream, in all or for the account (10076, 10039), which may be switched on.
func Passes(err error) bool {
	switch Code(err) {
	case 10005, 10008, 10009, 10039, 10076, 10118, 10119:
		return true
	default:
		return false
	}
}

// Pause waits for a while, and reports whether ctx is not done.
func Pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// DeletedWithin is how long a server takes to delete the files of a stream that it reports as not found.
const DeletedWithin = 200 * time.Millisecond

// AwaitDeletion waits for [DeletedWithin], or until ctx ends. A stream that is created before has the old entries, and
// may lose its own files (docs/upstream/0041).
func AwaitDeletion(ctx context.Context) { Pause(ctx, DeletedWithin) }
