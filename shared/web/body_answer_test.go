package web

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/daemon"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// What reads a body while it writes the response has ended before the next connection gets the
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

// A body that ends before its length is none.
func TestBody_EndsEarly(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test", MaxBodyBytes: func() int { return 1 << 20 }})
	Mount(app, Route{Method: http.MethodPost, Path: "/", Handler: func(c *fiber.Ctx) error {
		_, err := io.Copy(io.Discard, StreamedBody(c))
		return err
	}})
	c := dial(t, serve(t, app))
	c.send(t, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000\r\n\r\n"+string(make([]byte, 20000)))
	if tcp, ok := c.Conn.(*net.TCPConn); !ok || tcp.CloseWrite() != nil {
		t.Fatal("this is no TCP connection")
	}
	if r := c.receive(t, http.MethodPost); r.status != http.StatusBadRequest {
		t.Errorf("it is answered %d %s", r.status, r.body)
	}
}
