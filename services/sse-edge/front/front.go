// Package front speaks TLS, and HTTP/2 over it, in front of the edge's server, which speaks HTTP/1.1
// on plain connections: net/http takes the requests, and this package forwards each to that server
// on a connection of its own inside the process, with the client's address. So there is one router,
// one admission, and one cursor loop for both protocols, and an event stream of HTTP/2 counts as a
// connection.
//
//	client ══TLS══▶ net/http ──▶ for each request: a pair of sockets ──▶ the edge's server
//
// docs/adr/0028 has the costs.
package front

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/shared/quota"
	"rejoin/shared/web"
)

const (
	// maxStreams bounds the open requests of a connection of HTTP/2. One more waits in its
	// client. Resets do not make room at once: net/http bounds the handlers that still run.
	maxStreams = 100
	// pingAfter is how long a connection of HTTP/2 may be silent before the server pings it, and
	// answerWithin how long its client has to answer, or to take any byte of the data sent to it.
	pingAfter    = 30 * time.Second
	answerWithin = 15 * time.Second
	// maxHeaderBytes bounds the headers of a request. The edge takes less, and reports its limit.
	maxHeaderBytes = 64 << 10
	// bufferBytes bounds one read of a response.
	bufferBytes = 4 << 10
	// streamBytes bounds the unread body bytes that HTTP/2 holds for a request, and connectionBytes for a
	// connection; no quota counts them. One request leaves room for others.
	streamBytes, connectionBytes = 64 << 10, 128 << 10
)

// Server takes requests over TLS. It is safe for concurrent use.
type Server struct {
	http    http.Server
	pair    *pair
	ln      net.Listener
	backend *listener
	within  time.Duration // of a write to a client

	files, requests *quota.Pool // nil: any number
	client          func(net.Addr) string
	refused         func(client net.Addr, err error)
}

// New returns a server that takes the connections of ln once [Server.Serve] runs. headers and idle
// are how long a request's headers may take, and how long a connection may have no request; write is
// how long a write to a client may stall. Errors are one sentence for the user.
func New(ln net.Listener, files Files, headers, idle, write time.Duration, log *slog.Logger) (*Server, error) {
	pair, err := files.load(log)
	if err != nil {
		return nil, err
	}
	s := &Server{pair: pair, ln: ln, backend: &listener{addr: ln.Addr(), conns: make(chan net.Conn), closed: make(chan struct{})}, within: write, client: func(net.Addr) string { return "" }, refused: func(net.Addr, error) {}}
	s.http = http.Server{
		Handler:           http.HandlerFunc(s.forward),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get},
		ReadHeaderTimeout: headers,
		IdleTimeout:       idle,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter, PingTimeout: answerWithin, WriteByteTimeout: answerWithin,
			MaxReceiveBufferPerConnection: connectionBytes, MaxReceiveBufferPerStream: streamBytes,
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // handshakes that fail
	}
	return s, nil
}

// Bound counts requests in one pool, and their files in another: two each. client names their client, and
// refused is called for each request that is aborted with [ErrTooManyRequests], or for want of files. It must be
// called before [Server.Serve]. Default: any number.
func (s *Server) Bound(requests, files *quota.Pool, client func(net.Addr) string, refused func(client net.Addr, err error)) {
	s.requests, s.files, s.client, s.refused = requests, files, client, refused
}

// Expires returns when the certificate expires that the next client receives.
func (s *Server) Expires() time.Time {
	cert, _ := s.pair.get(nil) // never fails
	return cert.Leaf.NotAfter
}

// Backend returns the listener of the edge's server.
func (s *Server) Backend() net.Listener { return s.backend }

// Serve takes connections until [Server.Stop] is called, and returns nil then.
func (s *Server) Serve() error {
	if err := s.http.ServeTLS(s.ln, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Stop takes no more connections, and returns when the open ones have no request left. It cuts
// them off when ctx ends.
func (s *Server) Stop(ctx context.Context) {
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
}

// forward sends a request to the edge's server, and its response to the client.
func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	client := s.client(remoteOf(r))
	near, err := s.dial(r, client)
	if err != nil {
		// The edge stops, or there is no room; an EventSource would not reconnect after an error response.
		if !errors.Is(err, net.ErrClosed) && r.Context().Err() == nil {
			s.refused(remoteOf(r), err)
		}
		panic(http.ErrAbortHandler)
	}
	defer s.requests.Give(client, 1)
	control := http.NewResponseController(w)
	_ = control.EnableFullDuplex() // of HTTP/1.1: the response may begin before the body ends; HTTP/2 always allows it
	body := &body{ReadCloser: r.Body}
	sent := make(chan struct{})
	defer func() {
		_ = near.Close()
		if !body.ended.Load() { // the response came first: do not wait for the rest of the request
			_ = control.SetReadDeadline(time.Now())
		}
		<-sent
	}()
	defer context.AfterFunc(r.Context(), func() { _ = near.Close() })()
	go func() {
		defer close(sent)
		if send(near, r, body) != nil {
			_ = near.CloseWrite() // the edge sees that the request is incomplete
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReaderSize(near, bufferBytes), r)
	if err != nil {
		panic(http.ErrAbortHandler) // the edge has closed the connection: close the client's too
	}
	defer func() { _ = resp.Body.Close() }()
	header := w.Header()
	for name, values := range resp.Header {
		if !slices.Contains(hopByHop, name) {
			header[name] = values
		}
	}
	if r.ProtoMajor == 1 && (!body.ended.Load() || len(r.TransferEncoding) > 0) {
		// Or net/http waits for the rest of the request. A chunked request may also have had a length,
		// which net/http drops: then the connection has to be closed (RFC 9112, 6.1).
		header.Set("Connection", "close")
	}
	w.WriteHeader(resp.StatusCode)
	stalled := time.AfterFunc(s.within, func() { _ = control.SetWriteDeadline(time.Now()) }) // ends the write
	defer stalled.Stop()
	to := flusher{w, control, resp.ContentLength < 0, stalled, s.within}
	if to.streams {
		_ = to.control.Flush() // the client learns that the stream has begun
	}
	stalled.Stop()
	if _, err := io.CopyBuffer(to, onlyReader{resp.Body}, make([]byte, bufferBytes)); err != nil {
		panic(http.ErrAbortHandler) // or a partial response would look complete
	}
}

// hopByHop are the fields that belong to a connection (RFC 9110, 7.6.1). Expect is answered by
// net/http, which asks for the body when it is read.
var hopByHop = []string{"Connection", "Expect", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// body is the body of a request, and notes when it was read to its end.
type body struct {
	io.ReadCloser
	ended atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// send writes a request as HTTP/1.1, the last one on the connection.
func send(conn net.Conn, r *http.Request, from *body) error {
	out := r.Clone(r.Context())
	out.Body = from
	if r.Body == http.NoBody {
		from.ended.Store(true)
		out.Body = nil
	}
	for _, name := range hopByHop {
		out.Header.Del(name)
	}
	out.Header.Set("X-Forwarded-Proto", "https")
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = []string{""} // or Write gives it one
	}
	out.Close = true
	return out.Write(conn)
}

// onlyReader hides a body's other methods, with which io.CopyBuffer would not use its buffer.
type onlyReader struct{ io.Reader }

// flusher flushes each write at once, if it streams.
type flusher struct {
	w       io.Writer
	control *http.ResponseController
	streams bool
	stalled *time.Timer // ends a write that takes longer than within
	within  time.Duration
}

func (f flusher) Write(p []byte) (int, error) {
	f.stalled.Reset(f.within)
	defer f.stalled.Stop()
	n, err := f.w.Write(p)
	if err == nil && f.streams {
		err = f.control.Flush()
	}
	return n, err
}

// listener hands connections inside the process to the edge's server.
type listener struct {
	addr   net.Addr
	conns  chan net.Conn
	end    sync.Once
	closed chan struct{}
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close may be called again.
func (l *listener) Close() error {
	l.end.Do(func() { close(l.closed) })
	return nil
}

// dial makes a connection to the edge's server for a client's request. The caller gives the request back to its pool.
func (s *Server) dial(r *http.Request, client string) (_ *conn, err error) {
	if !s.requests.Take(client, 1) {
		return nil, ErrTooManyRequests
	}
	defer func() {
		if err != nil {
			s.requests.Give(client, 1)
		}
	}()
	if !s.files.Take(client, 2) {
		return nil, errTooManyFiles
	}
	near, far, err := socketPair()
	if err != nil {
		s.files.Give(client, 2)
		return nil, err
	}
	ends := [2]*conn{}
	for i, end := range []*net.UnixConn{near, far} {
		ends[i] = &conn{UnixConn: end, remote: remoteOf(r), local: s.backend.addr, files: s.files, client: client}
	}
	select {
	case s.backend.conns <- ends[1]:
		return ends[0], nil
	case <-s.backend.closed:
		err = net.ErrClosed
	case <-r.Context().Done():
		err = r.Context().Err()
	}
	return nil, cmp.Or(errors.Join(ends[0].Close(), ends[1].Close()), err)
}

func remoteOf(r *http.Request) net.Addr {
	addr, _ := netip.ParseAddrPort(r.RemoteAddr)
	return net.TCPAddrFromAddrPort(addr)
}

// ErrTooManyRequests is returned when the limit of requests, or that of their client, is reached.
var ErrTooManyRequests = errors.New("too many requests")

var errTooManyFiles = errors.New("too many open files")

// conn is an end of a connection inside the process. The edge's has the client's address.
type conn struct {
	*net.UnixConn
	web.Ending
	remote, local net.Addr
	files         *quota.Pool
	client        string
	closed        atomic.Bool
}

func (c *conn) Read(p []byte) (int, error) { return c.Note(c.UnixConn.Read(p)) }
func (c *conn) RemoteAddr() net.Addr       { return c.remote }
func (c *conn) LocalAddr() net.Addr        { return c.local }

// Close may be called again.
func (c *conn) Close() error {
	err := c.UnixConn.Close()
	if !c.closed.Swap(true) {
		c.files.Give(c.client, 1)
	}
	return err
}
