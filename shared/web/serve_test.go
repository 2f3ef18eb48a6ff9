package web

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/auth"
	"rejoin/shared/daemon"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, webtest.IgnoreFasthttp()...)) }

// serve runs app on a real listener for the length of the test.
func serve(t *testing.T, app *fiber.App) (addr string) {
	t.Helper()
	addr, stop := start(t, app, waittest.Timeout)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return addr
}

// start runs app until stop is called, which returns the result of Serve.
func start(t *testing.T, app *fiber.App, grace time.Duration) (addr string, stop func() error) {
	t.Helper()
	ln := must.Value(Listen(daemon.NewEnv(nil), "127.0.0.1:0", "--addr", Bounds{}))(t)
	return startOn(t, app, ln, grace)
}

// startOn is start for a listener.
func startOn(t *testing.T, app *fiber.App, ln net.Listener, grace time.Duration) (addr string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, app, ln, grace) }()
	return ln.Addr().String(), func() error {
		cancel()
		return <-served
	}
}

// client is a connection on which a test writes requests byte for byte.
type client struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	conn := webtest.Dial(t, addr, "")
	return &client{conn, bufio.NewReader(conn)}
}

// reset ends the connection with a reset.
func (c *client) reset(t *testing.T) {
	t.Helper()
	if tcp, ok := c.Conn.(*net.TCPConn); !ok || tcp.SetLinger(0) != nil {
		t.Fatal("this is no TCP connection")
	}
	_ = c.Close()
}

// closed fails the test unless the server has closed the connection, and sent no more.
func (c *client) closed(t *testing.T) {
	t.Helper()
	if rest, err := io.ReadAll(c.r); len(rest) > 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection is not closed: %q, %v", rest, err)
	}
}

// response is one with its body read.
type response struct {
	status int
	header http.Header
	body   string
}

func (c *client) send(t *testing.T, request string) {
	t.Helper()
	must.Value(io.WriteString(c, request))(t)
}

func (c *client) receive(t *testing.T, method string) response {
	t.Helper()
	a := webtest.ReadAnswer(t, c.r, method)
	return response{a.Status, a.Header, a.Text}
}

// do sends one request to localhost on a connection of its own. The headers
// are lines that end in \r\n.
func do(t *testing.T, addr, method, target, headers string) response {
	t.Helper()
	c := dial(t, addr)
	c.send(t, method+" "+target+" HTTP/1.1\r\nHost: localhost\r\n"+headers+"\r\n")
	return c.receive(t, method)
}

func TestServe_StopAnswersRunningRequests(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test"})
	entered, release := make(chan struct{}), make(chan struct{})
	Mount(app,
		Route{Method: "GET", Path: "/slow", Handler: func(c *fiber.Ctx) error {
			close(entered)
			<-release
			return c.SendString("done")
		}},
		Route{Method: "GET", Path: "/quick", Handler: func(c *fiber.Ctx) error { return c.SendString("done") }},
	)
	addr, stop := start(t, app, waittest.Timeout)

	idle := dial(t, addr)
	idle.send(t, "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if r := idle.receive(t, "GET"); r.body != "done" {
		t.Fatalf("got %+v", r)
	}
	busy := dial(t, addr)
	busy.send(t, "GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-entered

	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if _, err := idle.r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("an idle connection ended with %v, want EOF", err)
	}
	close(release)
	if r := busy.receive(t, "GET"); r.status != http.StatusOK || r.body != "done" {
		t.Errorf("got %+v", r)
	}
	must.NoError(t, <-stopped)
	var d net.Dialer
	if conn, err := d.DialContext(t.Context(), "tcp", addr); err == nil {
		_ = conn.Close()
		t.Error("still listening")
	}
}

func TestServe_GraceIsOver(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test"})
	entered, release, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	Mount(app, Route{Method: "GET", Path: "/slow", Handler: func(c *fiber.Ctx) error {
		defer close(left)
		close(entered)
		<-release
		return c.SendString("too late")
	}})
	addr, stop := start(t, app, time.Millisecond)
	c := dial(t, addr)
	c.send(t, "GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-entered
	if err := stop(); !errors.Is(err, ErrStopTimeout) {
		t.Errorf("got %v", err)
	}
	if _, err := c.r.ReadByte(); err == nil {
		t.Error("the connection is still open")
	}
	close(release)
	<-left
}

func TestServe_SilentConnections(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test", Clients: &Clients{cfg: ClientsConfig{HeaderTimeout: time.Hour}}})
	Mount(app, Route{Method: "GET", Path: "/", Handler: echo("ok")})
	ln := must.Value(Listen(daemon.NewEnv(nil), "127.0.0.1:0", "--addr", Bounds{}))(t)
	read := make(chan struct{})
	addr, stop := startOn(t, app, hookedListener{Listener: ln, read: sync.OnceFunc(func() { close(read) })}, waittest.Timeout)
	silent := dial(t, addr)
	<-read // or the server would set its deadline after the stop
	must.NoError(t, stop())
	expectProblem(t, silent.receive(t, "GET"), CodeRequestTimeout)
}

// hookedListener calls read once a connection has got a deadline to be read by, and closed when the server closes it.
type hookedListener struct {
	net.Listener
	read, closed func()
}

func (l hookedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &hookedConn{conn, l}, err
}

type hookedConn struct {
	net.Conn
	hooks hookedListener
}

func (c *hookedConn) SetReadDeadline(at time.Time) error {
	if c.hooks.read != nil {
		defer c.hooks.read()
	}
	return c.Conn.SetReadDeadline(at)
}

func (c *hookedConn) Close() error {
	if c.hooks.closed != nil {
		c.hooks.closed()
	}
	return c.Conn.Close()
}

func TestServe_ContextHasEnded(t *testing.T) {
	t.Parallel()
	for range 20 { // the race between start and stop has two outcomes
		ln := must.Value(Listen(daemon.NewEnv(nil), "127.0.0.1:0", "--addr", Bounds{}))(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		must.NoError(t, Serve(ctx, NewApp(Config{Service: "test"}), ln, waittest.Timeout))
	}
}

func TestServe_HijackedConnections(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test", WriteTimeout: time.Nanosecond})
	entered, release, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	Mount(app, Route{Method: "GET", Path: "/stream", NoHead: true, Handler: func(c *fiber.Ctx) error {
		c.Context().HijackSetNoResponse(true)
		c.Context().Hijack(func(conn net.Conn) {
			defer close(left)
			close(entered)
			<-release
			_, _ = io.WriteString(conn, "last words")
		})
		return nil
	}})
	addr, stop := start(t, app, waittest.Timeout)
	c := dial(t, addr)
	c.send(t, "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-entered
	must.NoError(t, stop())
	close(release)
	got, err := io.ReadAll(c.r)
	if err != nil || string(got) != "last words" {
		t.Errorf("got %q, %v", got, err)
	}
	<-left
}

func TestServe_BrokenListener(t *testing.T) {
	broken := errors.New("no more file descriptors")
	err := Serve(t.Context(), NewApp(Config{Service: "test"}), brokenListener{err: broken}, waittest.Timeout)
	if err == nil {
		t.Error("no error")
	}
}

type brokenListener struct{ err error }

func (l brokenListener) Accept() (net.Conn, error) { return nil, l.err }
func (l brokenListener) Close() error              { return nil }
func (l brokenListener) Addr() net.Addr            { return &net.TCPAddr{} }

func TestListen_PortIsTaken(t *testing.T) {
	t.Parallel()
	ln, err := Listen(daemon.NewEnv(nil), "127.0.0.1:0", "--edge-addr", Bounds{})
	must.NoError(t, err)
	defer func() { _ = ln.Close() }()
	_, err = Listen(daemon.NewEnv(nil), ln.Addr().String(), "--edge-addr", Bounds{})
	if err == nil || !strings.HasSuffix(err.Error(), " on 127.0.0.1 is taken by another program; stop it or choose another with --edge-addr") {
		t.Errorf("got %v", err)
	}
}

func TestServe_SlowRequest(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test", Clients: &Clients{cfg: ClientsConfig{HeaderTimeout: 500 * time.Millisecond, BodyTimeout: 500 * time.Millisecond}}})
	Mount(app, Route{Method: "POST", Path: "/", Handler: func(c *fiber.Ctx) error { return c.SendStatus(fiber.StatusNoContent) }})
	addr := serve(t, app)
	for name, begun := range map[string]string{
		"nothing": "",
		"headers": "POST / HTTP/1.1\r\nHost: localhost\r\n",
		"body":    "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, addr)
			c.send(t, begun)
			r := c.receive(t, "POST")
			expectProblem(t, r, CodeRequestTimeout)
			// A request that was begun too late for its answer is answered with a reset.
			if _, err := c.r.ReadByte(); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the connection ended with %v, want EOF", err)
			}
		})
	}
}

// The time is for a part of the body, at any pace of its bytes.
func TestServe_TricklingBody(t *testing.T) {
	t.Parallel()
	const patient = 5 // parts
	app := NewApp(Config{Service: "test", Clients: &Clients{cfg: ClientsConfig{BodyTimeout: waittest.Timeout}}})
	parts := make(chan error, 100)
	Mount(app, Route{Method: "POST", Path: "/", Handler: func(c *fiber.Ctx) error {
		body := StreamedBody(c)
		for n := 0; ; n++ {
			if n == patient {
				body.timeout, body.extended = 100*time.Millisecond, time.Time{}
			}
			body.Part()
			_, err := io.ReadFull(body, make([]byte, 10))
			if parts <- err; err != nil {
				return err
			}
		}
	}})
	c := dial(t, serve(t, app))
	c.send(t, "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Type: application/x-ndjson\r\n\r\n")
	for range patient {
		c.send(t, "a\r\n0123456789\r\n")
		must.NoError(t, <-parts)
	}
	over := make(chan struct{})
	var trickle sync.WaitGroup
	trickle.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(20 * time.Millisecond): // less than a part may take
				_, _ = io.WriteString(c, "1\r\nx\r\n") // fails once it is cut off
			}
		}
	})
	defer trickle.Wait()
	defer close(over)
	expectProblem(t, c.receive(t, "POST"), CodeRequestTimeout)
}

func TestServe_IdleConnection(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test"})
	app.Server().IdleTimeout = 50 * time.Millisecond
	Mount(app, Route{Method: "GET", Path: "/", Handler: func(c *fiber.Ctx) error { return c.SendString("done") }})
	c := dial(t, serve(t, app))
	c.send(t, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	c.receive(t, "GET")
	if _, err := c.r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection ended with %v, want EOF", err)
	}
}

// The rest of a body is not the next request, and a client that is still sending
// must see the answer all the same.
func TestServe_UnreadBody(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test"})
	Mount(app, Route{Method: "POST", Path: "/", Handler: func(c *fiber.Ctx) error {
		if _, err := StreamedBody(c).Read(make([]byte, 10)); err != nil {
			return err
		}
		return c.SendString("enough")
	}})
	addr := serve(t, app)
	for _, version := range []string{"1.1", "1.1\r\nConnection: close", "1.0", "1.0\r\nConnection: keep-alive"} {
		c := dial(t, addr)
		c.send(t, "POST / HTTP/"+version+"\r\nHost: localhost\r\nContent-Length: 10000000\r\nContent-Type: application/x-ndjson\r\n\r\n"+strings.Repeat("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 1000))
		answer, err := io.ReadAll(c.r)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 OK\r\n") || !strings.Contains(string(answer), "\r\nConnection: Close\r\n") || !strings.HasSuffix(string(answer), "\r\n\r\nenough") {
			t.Errorf("%q: got %q, %v", version, answer, err)
		}
	}
}

// TakeOver passes a connection on also when it has ended before: the receiver may have resources to release.
func TestTakeOver_ConnectionEndsBefore(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test"})
	entered, reset, taken := make(chan struct{}), make(chan struct{}), make(chan net.Conn, 1)
	Mount(app,
		Route{Method: "GET", Path: "/first", Handler: func(c *fiber.Ctx) error { return c.SendString("done") }},
		Route{Method: "GET", Path: "/taken", Handler: func(c *fiber.Ctx) error {
			TakeOver(c, func(conn net.Conn) { taken <- conn })
			close(entered)
			<-reset
			return nil
		}},
	)
	c := dial(t, serve(t, app))
	c.send(t, "GET /first HTTP/1.1\r\nHost: localhost\r\n\r\nGET /taken HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-entered
	c.reset(t)
	close(reset)
	conn := waittest.Receive(t, "the connection is taken over", taken)
	if _, err := conn.Write([]byte("x")); err == nil {
		t.Error("it is not closed")
	}
}

// A function that reads a body while it writes the response has ended before the next connection gets the
// buffers that it reads from.
func TestBody_AnswerCannotBeSent(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test", Clients: &Clients{cfg: ClientsConfig{BodyTimeout: time.Hour}}})
	var ended atomic.Bool
	closed := make(chan bool, 1)
	Mount(app, Route{Method: http.MethodPost, Path: "/", Handler: func(c *fiber.Ctx) error {
		body := StreamedBody(c)
		body.Answer(func(w *bufio.Writer) {
			for {
				if _, err := w.WriteString("line\n"); err != nil || w.Flush() != nil {
					break
				}
			}
			body.Part()
			_, _ = io.Copy(io.Discard, body)
			time.Sleep(50 * time.Millisecond) // or the reader may have ended by chance
			ended.Store(true)
		})
		return nil
	}})
	ln := must.Value(Listen(daemon.NewEnv(nil), "127.0.0.1:0", "--addr", Bounds{}))(t)
	addr, stop := startOn(t, app, hookedListener{Listener: ln, closed: sync.OnceFunc(func() { closed <- ended.Load() })}, waittest.Timeout)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	c := dial(t, addr)
	c.send(t, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: 1000000000\r\n\r\n"+strings.Repeat(" ", 20000))
	must.Value(c.r.ReadByte())(t)
	c.reset(t)
	if !waittest.Receive(t, "the connection is closed", closed) {
		t.Error("the body is read although the connection is closed")
	}
}

// The memory of an answer counts for its client until it is written, or its connection has ended.
func TestAttackUnreadAnswers(t *testing.T) {
	t.Parallel()
	const size = 20 << 20 // more than the kernel takes
	memory := quota.NewPool(2*size - 1)
	app := NewApp(Config{Service: "test", Memory: memory})
	large := strings.Repeat("x", size)
	Mount(app,
		Route{Method: http.MethodGet, Path: "/raw", Handler: func(c *fiber.Ctx) error { return c.Send([]byte(large)) }},
		Route{Method: http.MethodGet, Path: "/copy", Handler: func(c *fiber.Ctx) error { return c.SendString(large) }},
		Route{Method: http.MethodGet, Path: "/small", Handler: func(c *fiber.Ctx) error { return c.SendString("small") }},
	)
	addr := serve(t, app)
	for _, path := range []string{"/raw", "/copy"} {
		unread := dial(t, addr)
		unread.send(t, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
		must.Value(unread.r.ReadByte())(t)
		if n := memory.Used(); n != size {
			t.Errorf("%s: %d bytes count for an answer of %d", path, n, size)
		}
		if r := do(t, addr, http.MethodGet, path, ""); r.status != http.StatusServiceUnavailable {
			t.Errorf("%s: an answer that has no room has the status %d", path, r.status)
		}
		if r := do(t, addr, http.MethodGet, "/small", ""); r.status != http.StatusOK {
			t.Errorf("%s: a small answer has the status %d", path, r.status)
		}
		unread.reset(t)
		waittest.Until(t, "nothing counts any more", func() bool { return memory.Used() == 0 })
		if r := do(t, addr, http.MethodGet, path, ""); r.body != large {
			t.Errorf("%s: the answer has the status %d and %d bytes", path, r.status, len(r.body))
		}
		waittest.Until(t, "nothing counts any more", func() bool { return memory.Used() == 0 })
	}
}

// The request is carried out by then: an answer takes the memory of the body, and a refusal for lack of memory does
// not look as if nothing were done.
func TestSend_AfterTheRequestIsCarriedOut(t *testing.T) {
	t.Parallel()
	const size = 10 << 10
	memory := quota.NewPool(2*size - 1)
	app := NewApp(Config{Service: "test", Memory: memory})
	Mount(app, Route{Method: http.MethodPost, Path: "/:times", Handler: func(c *fiber.Ctx) error {
		times, _ := c.ParamsInt("times")
		body, err := StreamedBody(c).Limited(size)
		if err != nil {
			return err
		}
		return c.Send(bytes.Repeat(body, times))
	}})
	c := dial(t, serve(t, app))
	for times, want := range map[int]int{1: http.StatusOK, 2: http.StatusServiceUnavailable} {
		c.send(t, fmt.Sprintf("POST /%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", times, size, strings.Repeat("x", size)))
		if r := c.receive(t, http.MethodPost); r.status != want || want != http.StatusOK && !strings.Contains(r.body, "carried out") {
			t.Errorf("%d times the body: %d %.200s", times, r.status, r.body)
		}
		waittest.Until(t, "nothing counts any more", func() bool { return memory.Used() == 0 })
	}
}

// A body that ends before its length, or without its last chunk, is refused.
func TestBody_EndsEarly(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test", MaxBodyBytes: func() int { return 1 << 20 }})
	Mount(app, Route{Method: http.MethodPost, Path: "/", Handler: func(c *fiber.Ctx) error {
		_, err := io.Copy(io.Discard, StreamedBody(c))
		return err
	}})
	addr := serve(t, app)
	for rest, want := range map[string]int{
		"Content-Length: 30000\r\n\r\n" + string(make([]byte, 20000)): http.StatusBadRequest,
		"Transfer-Encoding: chunked\r\n\r\n":                          http.StatusBadRequest,
		"Transfer-Encoding: chunked\r\n\r\n2\r\na":                    http.StatusBadRequest,
		"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n":               http.StatusBadRequest,
		"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n":      http.StatusOK,
	} {
		c := dial(t, addr)
		c.send(t, "POST / HTTP/1.1\r\nHost: localhost\r\n"+rest)
		if tcp, ok := c.Conn.(*net.TCPConn); !ok || tcp.CloseWrite() != nil {
			t.Fatal("this is no TCP connection")
		}
		if r := c.receive(t, http.MethodPost); r.status != want {
			t.Errorf("%.60q is answered %d %s", rest, r.status, r.body)
		}
	}
}

// A token that expires while the body arrives allows nothing any more.
func TestBody_TokenExpires(t *testing.T) {
	t.Parallel()
	for life, want := range map[time.Duration]int{time.Hour: http.StatusOK, 0: http.StatusUnauthorized} {
		app := NewApp(Config{Service: "test"})
		Mount(app, Route{Method: http.MethodPost, Path: "/", Handler: func(c *fiber.Ctx) error {
			c.Locals(grantsKey{}, auth.Grants{Subject: "alice", Expires: time.Now().Add(life)})
			_, err := StreamedBody(c).Limited(9)
			return err
		}})
		c := dial(t, serve(t, app))
		c.send(t, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
		if r := c.receive(t, http.MethodPost); r.status != want || (want == http.StatusUnauthorized) != strings.Contains(r.header.Get("WWW-Authenticate"), "invalid_token") {
			t.Errorf("with %s left the answer is %+v", life, r)
		}
	}
}
