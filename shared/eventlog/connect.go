package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/logrepeat"
)

// syncQueue is how many unread messages a synchronous subscription holds. It is made for each
// request to other services, and nats.go allocates the queue as a whole: 8 bytes for each
// message, by default 512 KiB.
const syncQueue = 4096

// Connect opens a connection to NATS that reconnects without limit, also to a server that refuses
// its login, since the server may get other users later. It never buffers
// messages that it cannot send: a publish without a connection fails at once, so
// that no message is stored long after its publisher received an error. The first
// attempt may fail too; the connection then continues trying.
//
// name is shown by the server's monitoring. opts are applied last.
func Connect(url, name string, log *slog.Logger, opts ...nats.Option) (*nats.Conn, error) {
	trouble := logrepeat.New(log)
	base := []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.RetryOnFailedConnect(true),
		nats.ReconnectBufSize(-1),
		nats.SyncQueueLen(syncQueue),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(c *nats.Conn, err error) {
			if !c.IsClosed() { // else this program has closed it
				log.Warn("disconnected from NATS", "error", err)
			}
		}),
		nats.ConnectHandler(func(c *nats.Conn) {
			log.Info("connected to NATS", "server", c.ConnectedServerName())
		}),
		nats.ReconnectHandler(func(c *nats.Conn) {
			log.Info("reconnected to NATS", "server", c.ConnectedServerName())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			subject := ""
			if s != nil {
				subject = s.Subject
			}
			// A refused connection is tried up to four times a second.
			trouble.Note(context.Background(), err.Error()+subject, "NATS reported an error", slog.Any("error", err), slog.String("subject", subject))
		}),
	}
	return nats.Connect(url, append(append(base, opts...), guardDials)...)
}

// dialGuard is a dialer that prevents a reconnect to NATS between a look at the connection's number and a
// publish on that connection: a publisher that is paused in between would publish on the next one, where its message
// overtakes those that were lost on this one, and whose server may be in no generation yet. It is safe for
// concurrent use.
type dialGuard struct {
	dial func(network, address string) (net.Conn, error)

	publishing sync.RWMutex // publishers hold it for reading, a dial for writing
	dialing    atomic.Bool  // a dial waits: no publish begins
	dialed     atomic.Uint64
}

// errPublishing is returned by a dial during a publish. The dial does not wait: nats.go dials under
// a lock that publishers wait for (docs/upstream/0006).
var errPublishing = errors.New("something is being published on the connection before")

// enter prevents the next dial until leave is called. It reports false if the connection with a number is not the
// newest any more, or the next dial waits.
func (g *dialGuard) enter(connection uint64) bool {
	if g.dialing.Load() {
		return false
	}
	g.publishing.RLock()
	if g.dialed.Load() == connection {
		return true
	}
	g.leave()
	return false
}

func (g *dialGuard) leave() { g.publishing.RUnlock() }

// Dial implements [nats.CustomDialer]: it makes a connection unless a publish is under way.
func (g *dialGuard) Dial(network, address string) (net.Conn, error) {
	g.dialing.Store(true)
	if !g.publishing.TryLock() {
		return nil, errPublishing
	}
	g.dialed.Add(1)
	g.dialing.Store(false)
	g.publishing.Unlock()
	return g.dial(network, address)
}

// guardDials is an option for [nats.Connect] that comes last. A server in this process is dialed like any other.
func guardDials(o *nats.Options) error {
	g := &dialGuard{dial: (&net.Dialer{Timeout: o.Timeout}).Dial}
	if o.CustomDialer != nil {
		g.dial = o.CustomDialer.Dial
	}
	if server := o.InProcessServer; server != nil {
		g.dial, o.InProcessServer = func(_, _ string) (net.Conn, error) { return server.InProcessConn() }, nil
	}
	o.CustomDialer = g
	return nil
}

// connectionNumber returns the number of the newest connection to NATS. One that is not of [Connect] is numbered when it
// is made, and [Log.send] does not keep the next one from being made.
func (l *Log) connectionNumber() uint64 {
	if g, ok := l.nc.Opts.CustomDialer.(*dialGuard); ok {
		return g.dialed.Load()
	}
	return l.nc.Stats().Reconnects
}

// errAgain is returned when nothing was sent, and [Log.prepareAndSend] has to choose the connection again.
var errAgain = fmt.Errorf("%w: another connection was made", ErrUnavailable)

// send sends a message for a partition on the connection with a number, and on no other. All messages that are
// not in a batch are sent by it. The error is [errAgain] if another connection was made, or one of [publishError].
func (l *Log) send(on uint64, p int, msg *nats.Msg) (jetstream.PubAckFuture, error) {
	if g, ok := l.nc.Opts.CustomDialer.(*dialGuard); ok {
		if !g.enter(on) {
			return nil, errAgain
		}
		defer g.leave()
	} else if l.connectionNumber() != on {
		return nil, errAgain
	}
	l.parts[p].sent.Add(size(msg.Data))
	future, err := l.js.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return nil, publishError(err)
	}
	return future, nil
}
