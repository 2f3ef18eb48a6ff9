// Package natstest runs real NATS servers for tests.
package natstest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// Server is a NATS server with JetStream that a test can stop and start again.
type Server struct {
	t   testing.TB
	dir string
	srv *server.Server
	opt server.Options
	// inside is the server of connections in memory; nil while it is stopped.
	inside atomic.Pointer[server.Server]
	mu     sync.Mutex
	conns  []net.Conn // connections in memory
}

// StartInMemory is [StartIn] for tests in virtual time: the server listens on no port, and is
// reached by [Server.InProcessConn] alone.
func StartInMemory(t testing.TB, dir string) *Server {
	t.Helper()
	s := &Server{t: t, dir: dir, opt: options(dir)}
	s.opt.DontListen = true
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// InVirtualTime runs a test in a bubble of [synctest], with servers of [StartInMemory]. The test may not
// run in parallel with others: a pool of nats.go or of the server may keep objects that belong to no bubble.
func InVirtualTime(t *testing.T, test func(*testing.T)) {
	t.Helper()
	ats.Register() // the server's clock runs by real time
	defer ats.Unregister()
	for range 2 { // after which pools are empty
		runtime.GC()
	}
	synctest.Test(t, test)
}

// InProcessConn returns a connection in memory to the server; see [nats.InProcessServer].
func (s *Server) InProcessConn() (net.Conn, error) {
	srv := s.inside.Load()
	if srv == nil {
		return nil, syscall.ECONNREFUSED
	}
	conn, err := srv.InProcessConn()
	if err == nil {
		s.mu.Lock()
		s.conns = append(s.conns, conn)
		s.mu.Unlock()
	}
	return conn, err
}

// hangUp ends all connections in memory, and waits until the server has noticed. A server that
// shuts down with a client connected sleeps under a lock, which in virtual time never ends when
// a goroutine waits for that lock.
func (s *Server) hangUp() {
	s.inside.Store(nil)
	s.mu.Lock()
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
	if s.opt.DontListen {
		time.Sleep(time.Millisecond)
	}
}

// Start runs a server on a free port of the loopback interface with its store in
// a folder of the test's own. The server ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartIn(t, t.TempDir())
}

// StartParallel starts a server for a test that runs in parallel with others.
func StartParallel(t *testing.T) *Server {
	t.Helper()
	t.Parallel()
	return Start(t)
}

// StartIn is Start with the store in dir.
func StartIn(t testing.TB, dir string) *Server {
	t.Helper()
	s := &Server{t: t, dir: dir, opt: options(dir)}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// StartConfig runs a server with a configuration file, but with the port and the store of
// [Start]. The changes are applied last.
func StartConfig(t testing.TB, file string, changes ...func(*server.Options)) *Server {
	t.Helper()
	opt, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatalf("the configuration of NATS: %v", err)
	}
	s := &Server{t: t, dir: t.TempDir(), opt: *opt}
	s.opt.Host, s.opt.Port, s.opt.HTTPPort, s.opt.StoreDir = "127.0.0.1", server.RANDOM_PORT, 0, s.dir
	s.opt.NoLog, s.opt.NoSigs = true, true
	if s.opt.JetStreamMaxStore == 0 { // else it depends on the disk
		s.opt.JetStreamMaxStore = maxStore
	}
	for _, change := range changes {
		change(&s.opt)
	}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start starts a stopped server again, on the same port and store. It is another
// server to its clients: it has a new ID.
func (s *Server) Start() {
	s.t.Helper()
	if s.opt.Port == server.RANDOM_PORT && !s.opt.DontListen {
		s.opt.Port = FreePort(s.t)
	}
	opt := s.opt
	srv := must.Value(run(&opt))(s.t)
	s.srv = srv
	s.inside.Store(srv)
}

// run runs a server. A program that the process of the tests is starting may have the listener of a server
// that was stopped for another moment, until it has closed the files that it does not inherit: the port is in
// use until then.
func run(opt *server.Options) (srv *server.Server, err error) {
	for end := time.Now().Add(waittest.Timeout); ; {
		if srv, err = runUntil(end, opt); err == nil || !strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) || time.Now().After(end) {
			return srv, err
		}
	}
}

func runUntil(end time.Time, opt *server.Options) (*server.Server, error) {
	srv, err := server.NewServer(opt)
	if err != nil {
		return nil, fmt.Errorf("cannot make a NATS server: %w", err)
	}
	fatal := make(fatalLog, 1)
	srv.SetLoggerV2(fatal, false, false, false)
	srv.Start()
	for !srv.ReadyForConnections(100 * time.Millisecond) {
		if err == nil && time.Now().After(end) {
			err = errors.New("it is not ready for connections")
		}
		select {
		case text := <-fatal:
			err = errors.New(text)
		default:
		}
		if err != nil {
			srv.Shutdown()
			srv.WaitForShutdown()
			return nil, fmt.Errorf("the NATS server did not start: %w", err)
		}
	}
	return srv, nil
}

// FreePort returns a port of the loopback interface that is free, and that no
// other process of tests gets until the test ends, also while its listener is
// stopped: a UDP socket keeps it. It is none of the ports that the system gives to
// clients: a client that tries again and again to reach a stopped server there connects
// to itself some time, and the port is taken.
func FreePort(t testing.TB) int {
	t.Helper()
	const from, to = 10_000, 32_000 // Linux gives those from 32,768 on
	for {
		port := from + rand.IntN(to-from) //nolint:gosec // no secret
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		var listen net.ListenConfig
		kept, err := listen.ListenPacket(context.Background(), "udp", addr)
		if err != nil {
			continue
		}
		ln, err := listen.Listen(context.Background(), "tcp", addr)
		if err != nil {
			_ = kept.Close()
			continue
		}
		_ = ln.Close() // only its port was wanted
		t.Cleanup(func() { _ = kept.Close() })
		return port
	}
}

// Stop ends the server and waits for it. Stopping a stopped server does nothing.
func (s *Server) Stop() {
	if s.srv == nil {
		return
	}
	s.hangUp()
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
	s.srv = nil
}

// Name is the server's name in a cluster.
func (s *Server) Name() string { return s.opt.ServerName }

// Dir is the store's folder.
func (s *Server) Dir() string { return s.dir }

// TearMetadata leaves the files of a stopped server as a kill does between the two that hold the metadata
// of a stream: the server does not find the stream again (docs/upstream/0036).
func (s *Server) TearMetadata(stream string) {
	s.t.Helper()
	sum := filepath.Join(s.dir, "jetstream", "$G", "streams", stream, server.JetStreamMetaFileSum)
	must.NoError(s.t, os.WriteFile(sum, []byte("0123456789abcdef"), 0o600))
}

// URL is the address for clients.
func (s *Server) URL() string { return s.srv.ClientURL() }

// Connect opens a connection that ends with the test.
func (s *Server) Connect(opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	if s.opt.DontListen {
		opts = append([]nats.Option{nats.InProcessServer(s)}, opts...)
	}
	nc, err := nats.Connect(s.URL(), append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectBufSize(-1), nats.Timeout(30 * time.Second)}, opts...)...)
	if err != nil {
		s.t.Fatalf("cannot connect: %v", err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// JetStream returns the API of a connection's server.
func JetStream(t testing.TB, nc *nats.Conn, opts ...jetstream.JetStreamOpt) jetstream.JetStream {
	t.Helper()
	return must.Value(jetstream.New(nc, opts...))(t)
}

// AwaitConn waits until a connection has noticed that the server was restarted: until then it is one
// to the previous run.
func (s *Server) AwaitConn(nc *nats.Conn) {
	s.t.Helper()
	waittest.Until(s.t, "the connection is one to this run of the server", func() bool { return nc.ConnectedServerId() == s.srv.ID() })
}

// maxStore is how many bytes a server's streams may reserve.
const maxStore = 16 << 30

// options are those of a server on a free port of the loopback interface.
func options(dir string) server.Options {
	return server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir,
		NoLog: true, NoSigs: true, ServerName: "natstest",
		JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: maxStore,
		MaxPayload:    8<<20 + 4<<10,    // a log's largest message by default, and its headers
		WriteDeadline: waittest.Timeout, // a client is disconnected for the bytes that wait for it, not for a slow machine
	}
}
