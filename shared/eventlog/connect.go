package eventlog

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/natsconn"
)

// Connect opens a connection to NATS that reconnects without limit and never buffers
// what it cannot send: a publish without a connection fails at once, so that
// nothing lands long after its publisher was told that it did not. The first
// attempt may fail too; the connection then continues trying.
//
// name is shown by the server's monitoring. opts are applied last.
func Connect(url, name string, log *slog.Logger, opts ...nats.Option) (*nats.Conn, error) {
	base := []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.ReconnectBufSize(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			log.Warn("disconnected from NATS", "error", err)
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
			log.Warn("NATS reported an error", "error", err, "subject", subject)
		}),
	}
	return nats.Connect(url, append(append(base, opts...), guardDials)...)
}

// WaitForJetStream returns when JetStream answers, or with ctx's error.
func WaitForJetStream(ctx context.Context, nc *nats.Conn, log *slog.Logger) error {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		return err
	}
	said := false
	for {
		_, err := js.AccountInfo(ctx)
		if err == nil {
			return nil
		}
		if !said {
			log.Info("waiting for JetStream", "reason", err)
			said = true
		}
		if !natsconn.Pause(ctx, retryEvery) {
			return errors.Join(ErrUnavailable, err, ctx.Err())
		}
	}
}
