package web

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"rejoin/shared/auth"
	"rejoin/shared/quota"
)

// Body is a request's body as it arrives. It must be read in the handler, or in the
// function that the handler gives to Answer. Not safe for concurrent use.
type Body struct {
	ctx     *fasthttp.RequestCtx
	stream  io.Reader // nil for a request without a body
	size    int       // as announced, or -1
	fields  int       // how many the head has, if size is -1
	timeout time.Duration
	// extended is when the deadline of an endless body was moved last.
	extended time.Time
	// kept says that it is still read when the handler has returned.
	kept bool
	read int
	err  error // the error that ended it: io.EOF when it was read whole

	mu   sync.Mutex
	over bool // the response has no receiver any more: reading ends

	memory *quota.Pool
	client func() string // the client for which it is held
	held   *quota.Part   // its part of memory; nil for none
}

// BodyLimit returns the MaxBodyBytes of a service that takes messages of up to maxMessage bytes: 4 MiB, which
// an array of messages may have, unless one message may be larger.
func BodyLimit(maxMessage int) int { return max(maxMessage, 4<<20) }

// headerRefused marks a request whose body is announced to be too large. A request of a client that
// sends it itself is refused.
const headerRefused = "Rejoin-Body-Refused"

// refuseLength marks a request whose body is announced to be too large, and takes the body from it: fasthttp
// would wait for the beginning of the body (docs/upstream/0021).
func refuseLength(h *fasthttp.RequestHeader, limit int) {
	if h.ContentLength() > limit && !bytes.Contains(h.ContentType(), []byte("jsonl")) && !bytes.Contains(h.ContentType(), []byte("ndjson")) {
		h.SetContentLength(0)
		h.Set(headerRefused, "1")
	}
}

// deferClose has [Body.finish] close the connection of a request that asks for that. fasthttp would do so at once,
// also with an unread rest of the body.
func deferClose(h *fasthttp.RequestHeader) {
	if h.ConnectionClose() {
		h.ResetConnectionClose()
		h.Set(fiber.HeaderConnection, closes)
	}
}

// closes has a connection closed after a response; fasthttp, which recognizes "close", does not know of it.
const closes = "Close"

// checkLength returns a handler that calls h unless the request's body is announced to be too large. It
// runs after [Access.Protect], so that pages of listed origins can read the answer.
func checkLength(h fiber.Handler) fiber.Handler {
	return func(c *fiber.Ctx) error {
		if len(c.Request().Header.Peek(headerRefused)) > 0 {
			return StreamedBody(c).err
		}
		return h(c)
	}
}

// bodyKey is the key of a request's Body.
type bodyKey struct{}

// StreamedBody returns the body of a request.
func StreamedBody(c *fiber.Ctx) *Body {
	b, _ := c.Locals(bodyKey{}).(*Body)
	return b
}

func newBody(c *fiber.Ctx, cfg Config) *Body {
	ctx := c.Context()
	b := &Body{
		ctx: ctx, stream: ctx.RequestBodyStream(), size: max(ctx.Request.Header.ContentLength(), -1), timeout: cfg.Clients.bodyTimeout(),
		memory: cfg.Memory, client: func() string { return cfg.Clients.Client(c) },
	}
	switch {
	case len(ctx.Request.Header.Peek(headerRefused)) > 0:
		b.stream, b.err = nil, tooLarge(cfg.MaxBodyBytes())
	case b.stream == nil || b.size == 0:
		b.stream, b.err = nil, io.EOF
	case b.size < 0:
		b.fields = ctx.Request.Header.Len()
	}
	return b
}

// Part gives the next part of a body, such as a line, the time-out of a whole body, less a sixteenth at most. So
// a body may have no end, and a client that trickles is cut off all the same. Without Part, all of the body has to
// arrive within the time-out.
func (b *Body) Part() {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Once the server stops, ctx has an error, and the rest of a body has to hurry.
	if now := time.Now(); now.Sub(b.extended) > b.timeout/16 && !b.over && b.ctx.Err() == nil {
		b.extended = now
		_ = b.ctx.Conn().SetReadDeadline(now.Add(b.timeout)) // fails on a closed connection, as Read does
	}
}

// Answer has write write the response, after the handler, while it continues to read the body. The
// connection is closed after the response. When that cannot be sent, the writer and the body
// return errors, and write has to return: the connection's buffers are the next one's then.
func (b *Body) Answer(write func(*bufio.Writer)) {
	b.kept = true
	b.close()
	a := &lateAnswer{body: b, done: make(chan struct{})}
	a.ReadCloser = fasthttp.NewStreamReader(func(w *bufio.Writer) {
		defer close(a.done)
		write(w)
	})
	b.ctx.Response.SetBodyStream(a, -1)
}

// lateAnswer is a response that is written while the body is read. fasthttp closes it before it gives the
// buffers that the body is read from to the next connection, and waits for no other request (docs/upstream/0034).
type lateAnswer struct {
	io.ReadCloser
	body *Body
	done chan struct{}
}

func (a *lateAnswer) Close() error {
	err := a.ReadCloser.Close()
	a.body.mu.Lock()
	a.body.over = true
	_ = a.body.ctx.Conn().SetReadDeadline(time.Unix(1, 0)) // fails on a closed connection, as Read does
	a.body.mu.Unlock()
	<-a.done
	return err
}

// close has linger close the connection after the response.
func (b *Body) close() {
	b.ctx.Request.Header.SetProtocol("HTTP/1.1") // else fasthttp sends keep-alive to a client of HTTP/1.0
	b.ctx.Response.Header.Set(fiber.HeaderConnection, closes)
	b.ctx.Hijack(linger)
}

// Read reads the bytes that have arrived, and waits for more. Errors are [io.EOF] at the end,
// and a [*Problem] when the body breaks off.
func (b *Body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.stream.Read(p)
	switch b.read += n; {
	case !errors.Is(err, io.EOF):
	case b.read < b.size:
		err = io.ErrUnexpectedEOF // fasthttp returns it inside of chunks alone
	case b.size < 0 && b.ended():
		err = io.ErrUnexpectedEOF
	case b.size < 0 && b.ctx.Request.Header.Len() != b.fields:
		err = errTrailers
	}
	b.err = bodyError(err)
	return n, b.err
}

// ended reports whether the connection has ended before the last chunk of the body. fasthttp takes its end between
// two chunks for that of the body (docs/upstream/0040).
func (b *Body) ended() bool {
	c, ok := b.ctx.Conn().(interface{ Ended() bool })
	return ok && c.Ended()
}

// errTrailers refuses a body with trailer fields: fasthttp adds them to the head, unchecked, and a
// client could append to X-Forwarded-For, after the proxy in front (docs/upstream/0021).
var errTrailers = New(CodeInvalidRequest, "A body in chunks must not end with trailer fields.")

func bodyError(err error) error {
	var network net.Error
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, errTrailers):
		return err
	case errors.As(err, &network) && network.Timeout():
		return Wrap(err, CodeRequestTimeout, "")
	default:
		return Wrap(err, CodeInvalidRequest, "")
	}
}

// Held returns the request's part of the application's memory, which is given back when
// the response is made, or, after [Body.Answer], by its writer. [Send] makes it that of the response.
func (b *Body) Held() *quota.Part {
	if b.held == nil {
		b.held = b.memory.Part(b.client())
	}
	return b.held
}

// ErrNoMemory is returned when a request cannot be read or answered for want of memory.
var ErrNoMemory = New(CodeUnavailable, "The service holds as much for its clients, or for this one, as it may.")

// Empty reports whether the request has no body.
func (b *Body) Empty() bool { return b.stream == nil }

// Limited reads the whole body. A body of more than limit bytes is a [*Problem] with
// the code body_too_large; one that memory has no room for is [ErrNoMemory]. With a token that has
// expired meanwhile the error is one with the code unauthorized.
func (b *Body) Limited(limit int) ([]byte, error) {
	all, err := b.whole(limit)
	if grants, ok := b.ctx.UserValue(grantsKey{}).(auth.Grants); ok && err == nil && !time.Now().Before(grants.Expires) {
		challenge(&b.ctx.Response, "invalid_token")
		return nil, Wrap(auth.ErrExpired, CodeUnauthorized, "")
	}
	return all, err
}

func (b *Body) whole(limit int) ([]byte, error) {
	switch {
	case b.err != nil && !errors.Is(b.err, io.EOF):
		return nil, b.err
	case b.stream == nil:
		return nil, nil
	case b.size > limit:
		b.err = tooLarge(limit)
		return nil, b.err
	case b.size >= 0:
		if !b.Held().Grow(int64(b.size)) {
			b.err = ErrNoMemory
			return nil, b.err
		}
		all := make([]byte, b.size)
		if _, err := io.ReadFull(b, all); err != nil {
			return nil, unfinished(err)
		}
		if b.err == nil {
			b.err = io.EOF // it has its length
		}
		return all, nil
	}
	return b.chunked(limit)
}

// chunked is whole for a body of unknown length.
func (b *Body) chunked(limit int) (all []byte, err error) {
	for {
		if len(all) == cap(all) {
			if len(all) > limit {
				b.err = tooLarge(limit)
				return nil, b.err
			}
			more := min(max(cap(all), 4<<10), limit+1-len(all))
			if !b.Held().Grow(int64(more)) {
				b.err = ErrNoMemory
				return nil, b.err
			}
			all = append(make([]byte, 0, cap(all)+more), all...)
		}
		n, err := b.Read(all[len(all):cap(all)])
		all = all[:len(all)+n]
		switch {
		case errors.Is(err, io.EOF) && len(all) <= limit:
			return all, nil
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		}
	}
}

// tooLarge is the answer to a body of more than limit bytes.
func tooLarge(limit int) *Problem {
	return New(CodeBodyTooLarge, fmt.Sprintf("The body of this request may have up to %d bytes.", limit))
}

// unfinished is the answer to a body that ended early.
func unfinished(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Wrap(err, CodeInvalidRequest, "")
	}
	return err
}

// freeAnswer is the size up to which an answer is not counted: as much as waits for any connection.
const freeAnswer = 4 << 10

// holdAnswer sends the answer of a handler, if it is larger than freeAnswer.
func holdAnswer(c *fiber.Ctx) error {
	r := c.Response()
	if r.IsBodyStream() || len(r.Body()) <= freeAnswer {
		return nil
	}
	answer := r.Body()
	r.SwapBody(nil) // else fasthttp gives its buffer to another answer
	err := Send(c, answer, nil)
	if method := c.Method(); err != nil && method != fiber.MethodGet && method != fiber.MethodHead && r.StatusCode() < http.StatusMultipleChoices {
		return Wrap(err, CodeUnavailable, "The request was carried out, and there is no memory for its answer.")
	}
	return err
}

// maxLeftOver is how much of an unwanted body is read so that the connection
// stays open.
const maxLeftOver = 64 << 10

// finish has the connection closed after the response unless the body was read to its
// end: the rest of it is not the next request (docs/upstream/0019). See also deferClose.
func (b *Body) finish() {
	if b.kept {
		return
	}
	if b.held != nil {
		b.held.Release()
	}
	if b.ctx.Hijacked() {
		return // a hijacker takes no other request from the connection
	}
	if b.err == nil && b.size >= 0 && b.size <= maxLeftOver {
		_, _ = io.Copy(io.Discard, b) // its error is b.err
	}
	switch {
	case !errors.Is(b.err, io.EOF) && !b.ctx.Response.ConnectionClose():
		b.close()
	case string(b.ctx.Request.Header.Peek(fiber.HeaderConnection)) == closes:
		b.ctx.SetConnectionClose()
	}
}

// Unwrap returns the connection below the one that a hijacker gets, which has all methods of
// a TCP connection.
func Unwrap(conn net.Conn) net.Conn {
	if u, ok := conn.(interface{ UnsafeConn() net.Conn }); ok {
		return u.UnsafeConn()
	}
	return conn
}

// lingering is how long a client whose request was not read to its end may continue to send.
const lingering = time.Second

// linger closes a connection after the response. A connection that is closed while
// data arrives on it is reset, and the client might never see the response.
func linger(conn net.Conn) {
	conn = Unwrap(conn)
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil && conn.SetReadDeadline(time.Now().Add(lingering)) == nil {
		_, _ = io.Copy(io.Discard, conn)
	}
	_ = conn.Close() // the server may do so too
}
