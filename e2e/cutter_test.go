package e2e

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"testing"

	"rejoin/shared/must"
)

// serve starts an HTTP server, which ends with the test and cuts its connections then.
func serve(t testing.TB, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// newHTTPProxy starts an HTTP proxy, which ends with the test. If pass returns an error for a response, and
// without the server, it answers 502.
func newHTTPProxy(t testing.TB, target string, pass func(*http.Response) error) *httptest.Server {
	t.Helper()
	to := must.Value(url.Parse(target))(t)
	proxy := &httputil.ReverseProxy{
		Transport:      &http.Transport{DisableKeepAlives: true},
		FlushInterval:  -1,
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ModifyResponse: pass,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	return serve(t, proxy.ServeHTTP)
}

// relay is a TCP proxy whose connections a test can end.
type relay struct {
	ln       net.Listener
	handling sync.WaitGroup

	mu     sync.Mutex
	refuse bool // new connections are closed at once
	conns  map[net.Conn]bool
}

// listen has each client handled until the test ends.
func (r *relay) listen(t testing.TB, handle func(client net.Conn)) {
	t.Helper()
	r.ln = must.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	r.conns = map[net.Conn]bool{}
	r.handling.Go(func() {
		for {
			client, err := r.ln.Accept()
			if err != nil {
				return
			}
			r.handling.Go(func() {
				handle(client)
				_ = client.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = r.ln.Close()
		r.block()
		r.handling.Wait()
	})
}

func (r *relay) addr() string { return r.ln.Addr().String() }

// join reports whether a client may be connected with a target.
func (r *relay) join(client, target net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse {
		_ = target.Close()
		return false
	}
	r.conns[client], r.conns[target] = true, true
	return true
}

// cut ends all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cutLocked()
}

func (r *relay) cutLocked() {
	for conn := range r.conns {
		_ = conn.Close()
	}
	clear(r.conns)
}

// block ends all connections, and new ones.
func (r *relay) block() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = true
	r.cutLocked()
}

// cutter is a relay that cuts connections on request.
type cutter struct {
	relay

	targets []string // the first that takes a connection gets it
	balance bool     // begins with another target each time
	taken   int
	// left is how many of the next bytes for clients still pass before all is cut;
	// negative means all.
	left int
	seen bytes.Buffer // the bytes sent to clients
}

// newCutter starts a proxy, which ends with the test.
func newCutter(t testing.TB, targets ...string) *cutter {
	t.Helper()
	c := &cutter{targets: targets, left: -1}
	c.listen(t, c.handle)
	return c
}

// newBalancer is newCutter with connections spread over the targets.
func newBalancer(t testing.TB, targets ...string) *cutter {
	t.Helper()
	c := newCutter(t, targets...)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.balance = true
	return c
}

// leadTo sends new connections to these targets, as a proxy does that has checked that they are
// ready.
func (c *cutter) leadTo(targets ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.targets = targets
}

// mcp is the URL of the MCP endpoint behind it.
func (c *cutter) mcp() string { return "http://" + c.addr() + "/mcp" }

// handle joins a client with a target until one of them ends or all is cut.
func (c *cutter) handle(client net.Conn) {
	var target net.Conn
	for _, addr := range c.chosen() {
		var err error
		if target, err = new(net.Dialer).Dial("tcp", addr); err == nil {
			break
		}
	}
	if target == nil || !c.join(client, target) {
		return
	}
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(target, client) // the end of one ends the other
		_ = target.Close()
	})
	_, _ = io.Copy(through{c, client}, target)
	_ = client.Close()
	up.Wait()
}

func (c *cutter) chosen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.balance {
		return c.targets
	}
	at := c.taken % len(c.targets)
	c.taken++
	return slices.Concat(c.targets[at:], c.targets[:at])
}

// count returns how often a text was sent to clients.
func (c *cutter) count(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Count(c.seen.Bytes(), []byte(text))
}

// cutAfter ends all connections after the next n bytes to clients.
func (c *cutter) cutAfter(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = n
}

// through is the way to a client.
type through struct {
	*cutter
	client net.Conn
}

func (w through) Write(b []byte) (int, error) {
	w.mu.Lock()
	limit := len(b)
	if w.left >= 0 {
		limit = min(limit, w.left)
		w.left -= limit
	}
	cut := w.left == 0
	w.mu.Unlock()
	n, err := w.client.Write(b[:limit])
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.Write(b[:n])
	if cut {
		w.cutLocked()
		w.left = -1
	}
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return n, err
}
