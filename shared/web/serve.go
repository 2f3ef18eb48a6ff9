package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
)

// arrival is how long after the stop the rest of a request may take to
// arrive. Browsers keep spare connections on which they have sent nothing
// yet, and a stop should not wait for the time-out of those.
const arrival = time.Second

// Serve serves app on ln until ctx ends. Then it takes no more connections,
// closes those that are idle, answers the requests that arrive within 1 s on
// those that are open, waits up to grace for the answers, and returns nil.
// When grace is over it cuts off the remaining connections and returns an
// error that wraps [ErrStopTimeout].
//
// Handlers do not learn from Serve that ctx has ended: one that may wait for long, such as
// a long poll, must watch for it. A hijacked connection is no longer
// Serve's, and its hijacker must close it. Serve closes ln; it must be
// called only once for each app.
func Serve(ctx context.Context, app *fiber.App, ln net.Listener, grace time.Duration) error {
	open := connections{all: map[net.Conn]struct{}{}}
	app.Server().ConnState = open.track
	l, ok := ln.(*listener)
	if !ok {
		l = one(ln)
	}
	defer l.drop()
	served := make(chan error, 1)
	go func() { served <- app.Listener(l) }()

	select {
	case err := <-served:
		_ = l.Close() // Serve failed: that error matters more
		now, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancel()
		_ = app.ShutdownWithContext(now) // which runs the hooks, and does not wait
		return err
	case <-ctx.Done():
	}

	defer time.AfterFunc(arrival, open.hurry).Stop()
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	// When ctx ends very early, fasthttp does not know its listener yet and
	// Shutdown does nothing (docs/upstream/0023). The second one, after Serve has returned, waits
	// for the connections that were accepted meanwhile.
	err := app.ShutdownWithContext(patience)
	_ = l.Close() // it may be closed already
	serveErr := <-served
	if err == nil {
		err = app.ShutdownWithContext(patience)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		open.cut()
		err = fmt.Errorf("%w (%s)", ErrStopTimeout, grace)
	}
	return errors.Join(err, serveErr)
}

// connections are those that are open and not hijacked.
type connections struct {
	mu  sync.Mutex
	all map[net.Conn]struct{}
}

func (c *connections) track(conn net.Conn, state fasthttp.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case fasthttp.StateNew:
		c.all[conn] = struct{}{}
	case fasthttp.StateClosed:
		delete(c.all, conn)
		of, _ := takers.LoadAndDelete(conn)
		if take, ok := of.(func(net.Conn)); ok {
			go take(conn)
		}
	case fasthttp.StateHijacked:
		delete(c.all, conn)
		takers.Delete(conn)
	case fasthttp.StateActive, fasthttp.StateIdle:
	}
}

// takers are the functions that [TakeOver] gives connections to, by connection, until they have them.
var takers sync.Map

// TakeOver gives a request's connection to take after the handler, without a response. It calls take even
// when the connection is closed already: then fasthttp calls no hijacker (docs/upstream/0035).
func TakeOver(c *fiber.Ctx, take func(net.Conn)) {
	ctx := c.Context()
	takers.Store(ctx.Conn(), take)
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(conn net.Conn) { take(Unwrap(conn)) })
}

// hurry ends the wait for requests that clients are still sending. A connection
// whose request is being answered is not read from, so it is not affected.
func (c *connections) hurry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.all {
		_ = conn.SetReadDeadline(time.Now()) // fails on a closed one only
	}
}

// cut closes all connections.
func (c *connections) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.all {
		_ = conn.Close() // fails on a closed one only
	}
}

// Send answers with a body, which takes of its client's memory, in place of the request, until all of it was written to
// the connection, or that is closed. Then it calls done, once, unless that is nil. The error is [ErrNoMemory]: done is
// not called then.
func Send(c *fiber.Ctx, body []byte, done func()) error {
	b := StreamedBody(c)
	held := b.Held()
	if !held.Resize(int64(len(body))) {
		return ErrNoMemory
	}
	b.held = nil
	return SendCounted(c, body, func() {
		held.Release()
		if done != nil {
			done()
		}
	})
}

// SendCounted is [Send] for a body that takes no more memory than the caller has counted, until done is called, or
// than the program holds anyway, as a page does.
func SendCounted(c *fiber.Ctx, body []byte, done func()) error {
	c.Context().SetBodyStream(&sent{*bytes.NewReader(body), sync.OnceFunc(done)}, len(body))
	return nil
}

// sent is a body that is being written.
type sent struct {
	bytes.Reader
	done func()
}

// Close is called by fasthttp after the last byte, and when no more can be written.
func (s *sent) Close() error {
	s.done()
	return nil
}
