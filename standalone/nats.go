package standalone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"rejoin/deploy/credentials"
)

const (
	// defaultNATSAddr is the server's address without access control.
	defaultNATSAddr = "127.0.0.1:4222"
	// natsStart bounds the start of the embedded server, which reads its store first.
	natsStart = 5 * time.Minute
	// maxPayload is the largest message on NATS: a log may be set to accept messages of
	// 31 MiB, and headers come on top.
	maxPayload = 32 << 20
)

var errServer = errors.New("the embedded NATS server failed")

// natsServer is the embedded NATS server.
type natsServer struct {
	server *server.Server
	key    []nats.Option   // of the only user; empty when it accepts everybody
	failed context.Context //nolint:containedctx // ends with the first fatal error of the server, which is its cause
}

// startNATS starts a server with its store in the folder, and waits until it accepts
// connections. addr is the address for other programs, empty for none; guarded means that
// it accepts no client without the key in the folder. It syncs its files every
// syncInterval, or after each write when that is 0.
func startNATS(ctx context.Context, f *folder, addr string, guarded bool, syncInterval time.Duration, log *slog.Logger) (*natsServer, error) {
	n := &natsServer{}
	opts := &server.Options{
		ServerName: "rejoin",
		DontListen: addr == "",
		NoSigs:     true,
		MaxPayload: maxPayload,
		MaxPending: 2 * maxPayload,
		JetStream:  true,
		StoreDir:   f.path,
		// The janitor deletes announced entries after twice as long.
		SyncInterval: syncInterval,
		SyncAlways:   syncInterval == 0,
		// No limit besides the log's own: JetStream would refuse every change of a
		// stream once the disk has less free space than the log was promised
		// (docs/upstream/0018), and each start changes the streams, since it begins a
		// generation. The log's own MaxBytes bounds it.
		JetStreamMaxStore: math.MaxInt64 / 2,
		// Every acknowledgement has a subject of its own: none is looked up twice.
		NoSublistCache: true,
	}
	if addr != "" {
		host, service, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err // Validate has found it
		}
		port, err := net.LookupPort("tcp", service) //nolint:noctx // it asks nobody
		if err != nil {
			return nil, err
		}
		opts.Host, opts.Port = host, cmp.Or(port, server.RANDOM_PORT)
		if guarded {
			key := filepath.Join(f.path, keyFile)
			public, err := credentials.User(key)
			if err != nil {
				return nil, refused(f.path, err)
			}
			opts.Nkeys = []*server.NkeyUser{{Nkey: public}}
			option, err := nats.NkeyOptionFromSeed(key)
			if err != nil {
				return nil, refused(f.path, err)
			}
			n.key = []nats.Option{option}
		}
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errServer, err)
	}
	failed, fail := context.WithCancelCause(context.Background())
	n.server, n.failed = s, failed
	s.SetLoggerV2(&serverLog{log: log.With("component", "nats"), folder: f.path, fail: fail}, false, false, false)
	s.Start()
	deadline := time.Now().Add(natsStart)
	for !s.ReadyForConnections(100 * time.Millisecond) {
		if err := context.Cause(failed); err != nil {
			n.stop()
			return nil, err
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			n.stop()
			return nil, fmt.Errorf("%w: it was not ready after %s", errServer, natsStart)
		}
	}
	if addr != "" {
		log.Info("nats listens", "addr", s.Addr().String())
	}
	return n, nil
}

// run returns when ctx ends, or with an error when the server has failed. It does
// not stop the server.
func (n *natsServer) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.failed.Done():
		return context.Cause(n.failed)
	}
}

// stored returns how many bytes JetStream has stored.
func (n *natsServer) stored() int64 {
	info, err := n.server.Jsz(nil)
	if err != nil {
		return 0 // JetStream has failed, which ends the program
	}
	return int64(info.Store) //nolint:gosec // no disk has 8 EiB
}

func (n *natsServer) stop() {
	n.server.Shutdown()
	n.server.WaitForShutdown()
}

// serverLog is the server's logger. Its notices are of interest to few.
type serverLog struct {
	log    *slog.Logger
	folder string                  // of the store
	fail   context.CancelCauseFunc // takes fatal errors, of which the first counts
}

func (l *serverLog) Noticef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) } //nolint:sloglint // the server's own words
func (l *serverLog) Debugf(string, ...any)           {}
func (l *serverLog) Tracef(string, ...any)           {}

// Warnf leaves out the one warning that is about maxPayload. That a store reads its messages again
// after a kill is routine, and no damage.
func (l *serverLog) Warnf(format string, v ...any) {
	switch {
	case strings.HasPrefix(format, "Maximum payloads over"):
		return
	case strings.Contains(format, "state is outdated"):
		l.Noticef(format, v...)
		return
	}
	l.log.Warn(fmt.Sprintf(format, v...)) //nolint:sloglint // the server's own words
}

// Errorf ends the program when JetStream cannot write: it accepts no more messages then,
// even when there is space again, until it is restarted (docs/upstream/0008).
func (l *serverLog) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.log.Error(text) //nolint:sloglint // the server's own words
	if strings.HasSuffix(format, "will be DISABLED") || strings.Contains(format, "ritical write error") {
		if strings.Contains(text, syscall.EMFILE.Error()) || strings.Contains(text, syscall.ENFILE.Error()) {
			l.fail(fmt.Errorf("JetStream cannot open files in %s any more; raise the limit of open files (ulimit -n, LimitNOFILE), and start rejoin again", l.folder))
			return
		}
		l.fail(fmt.Errorf("JetStream cannot write to %s any more; free some disk space, and start rejoin again", l.folder))
	}
}

// Fatalf does not end the process, as the server would have it: the program stops in
// order and reports the error.
func (l *serverLog) Fatalf(format string, v ...any) {
	l.fail(fmt.Errorf("%w: %s", errServer, fmt.Sprintf(format, v...)))
}
