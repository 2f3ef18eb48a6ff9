package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/retry"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// remote is a session at the upstream's endpoint. It is safe for concurrent use.
type remote struct {
	host      *host.Host
	endpoint  *upstream.Endpoint
	id        string // the upstream's session; empty when it has none
	version   string // of the protocol, as negotiated
	stateless bool   // the revision has no sessions
}

// header returns the header of a request: the forwarded fields of a client's header, and the
// transport's own.
func (r *remote) header(client http.Header) http.Header {
	h := r.endpoint.Chosen(client)
	if r.stateless {
		upstream.Repeat(h, client)
		return h
	}
	if r.id != "" {
		h.Set(upstream.HeaderSession, r.id)
	}
	if version := client.Get(upstream.HeaderVersion); version != "" {
		h.Set(upstream.HeaderVersion, version)
	} else if r.version != "" {
		h.Set(upstream.HeaderVersion, r.version)
	}
	return h
}

// do makes a request. After a pause of the process the session, its streams, and the calls whose timers ran out
// meanwhile may be another bridge's: without the name, this one sends nothing to the upstream (docs/adr/0039).
func (r *remote) do(ctx context.Context, method string, header http.Header, data []byte) (*http.Response, error) {
	if !r.host.HasName() {
		return nil, upstream.ErrPaused
	}
	resp, err := r.endpoint.Do(ctx, method, header, data)
	if err == nil {
		r.host.Reached()
	}
	return resp, err
}

// post posts messages. An answer that is no success is for the client.
func (r *remote) post(ctx context.Context, client http.Header, data []byte) (resp *http.Response, refused *rpc.Answer) {
	header := r.header(client)
	span := r.host.BeginPost(ctx, client, header)
	resp, err := r.do(ctx, http.MethodPost, header, data)
	host.EndPost(span, resp)
	if err != nil {
		r.host.Unreachable(err)
		return nil, new(upstream.Unreachable(err))
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	r.host.Refused(resp.StatusCode)
	a := upstream.Refusal(resp)
	if a.Status == http.StatusNotFound && r.id == "" && !r.stateless {
		a.Status = http.StatusBadGateway // 404 would mean that the session has ended
	}
	return nil, &a
}

// response reads an answer up to the response to a request, and passes the messages before it to take. With a nil
// take they have no session to belong to, and are left out.
func (r *remote) response(resp *http.Response, id json.RawMessage, take func([]byte) error) (rpc.Message, []byte, error) {
	b := upstream.NewBody(resp.Header, resp.Body, r.host.MaxBytes())
	if b == nil {
		return rpc.Message{}, nil, fmt.Errorf("%w: it sent %q", upstream.ErrUnanswered, resp.Header.Get("Content-Type"))
	}
	for {
		in, err := b.Next()
		if errors.Is(err, io.EOF) {
			return rpc.Message{}, nil, upstream.ErrUnanswered
		}
		if err != nil {
			return rpc.Message{}, nil, err
		}
		for _, data := range in.Messages {
			if m, response, ok := responseTo(id, data); ok {
				return m, response, nil
			}
			if take == nil {
				continue
			}
			if err := take(data); err != nil {
				return rpc.Message{}, nil, err
			}
		}
	}
}

// Send forwards messages that are no requests. The end of ctx ends the waiting, and not the
// request: net/http may have given its connection to another session's request already, which would
// fail (docs/upstream/0031).
func (r *remote) Send(ctx context.Context, client http.Header, data []byte) rpc.Answer {
	answered := make(chan rpc.Answer, 1)
	if !r.host.Go(func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.host.Config.OpenTimeout)
		defer cancel()
		defer context.AfterFunc(r.host.Life, cancel)()
		resp, refused := r.post(within, client, data) //nolint:bodyclose // Finish closes it
		if refused != nil {
			answered <- *refused
			return
		}
		upstream.Finish(resp)
		answered <- rpc.Answer{Status: http.StatusAccepted}
	}) {
		return upstream.Unreachable(upstream.ErrStopping)
	}
	select {
	case a := <-answered:
		return a
	case <-ctx.Done():
		return upstream.Unreachable(context.Cause(ctx))
	}
}

// Serve forwards requests, and stores the upstream's messages for them, to the end.
func (r *remote) Serve(ctx context.Context, c *call.Call, client http.Header, data []byte) {
	ctx, p := c.WithIdleTimer(ctx)
	defer p.End()
	resp, refused := r.post(ctx, client, data) //nolint:bodyclose // follow closes it
	switch why := context.Cause(ctx); {
	case refused == nil:
		c.Accept()
		r.finish(c, client, r.follow(ctx, p, c, client, resp))
	case why != nil:
		r.finish(c, client, why)
	default:
		if refused.Status == http.StatusNotFound && !r.stateless {
			c.Scope.Session.Finish(upstream.ErrGone)
		}
		c.Refuse(*refused)
	}
}

// finish ends a call.
func (r *remote) finish(c *call.Call, client http.Header, why error) {
	if errors.Is(why, upstream.ErrTimeout) && !r.stateless {
		r.cancel(c, client)
	}
	if errors.Is(why, upstream.ErrGone) {
		c.Scope.Session.Finish(upstream.ErrGone)
	}
	c.End(why)
}

// cancel tells the upstream that the open requests are cancelled.
func (r *remote) cancel(c *call.Call, client http.Header) {
	ctx, cancel := context.WithTimeout(r.host.Life, upstream.DialTimeout)
	defer cancel()
	open, _ := c.Left()
	for _, request := range open {
		_ = r.Send(ctx, client, upstream.Cancelled(request.Sent)) // it is over in any case
	}
}

// follow stores the messages of an answer, and of the streams that resume it, until all
// requests are answered. The error is the reason why they never will be.
func (r *remote) follow(ctx context.Context, p *upstream.IdleTimer, c *call.Call, client http.Header, resp *http.Response) error {
	pause := retry.FirstPause
	for {
		b := upstream.NewBody(resp.Header, resp.Body, r.host.MaxBytes())
		if b == nil {
			upstream.Finish(resp)
			return fmt.Errorf("%w: it sent %q", upstream.ErrUnanswered, resp.Header.Get("Content-Type"))
		}
		began := time.Now()
		came, err := r.read(p, c, b)
		upstream.Finish(resp)
		switch why := context.Cause(ctx); {
		case c.Done():
			return nil
		case why != nil:
			return why
		case errors.Is(err, upstream.ErrTooLarge), errors.Is(err, call.ErrClosed), errors.Is(err, upstream.ErrStopping):
			return err
		case c.Cursor().ID == "":
			return fmt.Errorf("%w: %w", upstream.ErrUnanswered, err)
		}
		if came && time.Since(began) > pollPause { // else the stream ended at once, and the next may too
			pause = retry.FirstPause
		}
		if resp, err = r.reconnect(ctx, c, client, max(pause, b.Retry())); err != nil { //nolint:bodyclose // finish closes it
			return err
		}
		pause = min(2*pause, retry.LastPause)
	}
}

// read stores the messages of an answer, and reports whether there were any. It returns
// when all requests of c are answered, or with the reason why it cannot continue.
func (r *remote) read(p *upstream.IdleTimer, c *call.Call, b *upstream.Body) (came bool, err error) {
	var last string // the cursor
	since := 0      // how many messages came after it in events without an ID
	for {
		in, err := b.Next()
		if err != nil {
			c.Moved(b.LastID())
			return came, err
		}
		if len(in.Messages) == 0 {
			c.Moved(b.LastID())
			continue // no message: the timer runs on
		}
		p.Came()
		if at := c.Cursor().ID; at != last {
			last, since = at, 0
		}
		for i, data := range in.Messages {
			it := call.Item{Data: data, ID: in.ID, Index: i}
			if in.ID == "" && last != "" {
				it = call.Item{Data: data, ID: last, After: true, Index: since}
				since++
			}
			if err := c.Take(it); err != nil {
				return came, err
			}
			came = true
		}
		if !c.Standalone() && c.Done() {
			return came, nil
		}
		c.Moved(b.LastID())
		p.Wait()
	}
}

// reconnect resumes a broken stream at its cursor (MCP 2025-11-25, resumability and
// redelivery). It tries until the upstream answers, or has been unavailable for
// OpenTimeout. Errors are [upstream.ErrGone], [upstream.ErrNoStream], ctx's cause, or that of the last try.
func (r *remote) reconnect(ctx context.Context, c *call.Call, client http.Header, pause time.Duration) (*http.Response, error) {
	for since := time.Now(); ; pause = min(max(2*pause, retry.FirstPause), retry.LastPause) {
		if !r.host.Pause(ctx, pause) {
			return nil, context.Cause(ctx)
		}
		resp, err := r.get(ctx, client, c.Cursor().ID)
		if err == nil {
			r.host.Metrics.Resumes.Inc()
			return resp, nil
		}
		if why := context.Cause(ctx); why != nil {
			return nil, why
		}
		if errors.Is(err, upstream.ErrPaused) {
			since = time.Now() // the upstream was not asked
		}
		if errors.Is(err, upstream.ErrGone) || errors.Is(err, upstream.ErrNoStream) || time.Since(since) > r.host.Config.OpenTimeout {
			return nil, err
		}
	}
}

// get asks for a stream: the one that an event belongs to, or, without an event, the one that is
// about no request. Errors are [upstream.ErrGone], [upstream.ErrNoStream], or such that trying again may help.
func (r *remote) get(ctx context.Context, client http.Header, lastID string) (*http.Response, error) {
	h := r.header(client)
	if lastID != "" {
		h.Set(upstream.HeaderLastEvent, lastID)
	}
	resp, err := r.do(ctx, http.MethodGet, h, nil)
	if err != nil {
		r.host.Unreachable(err)
		return nil, err
	}
	r.host.Refused(resp.StatusCode)
	if resp.StatusCode == http.StatusOK && upstream.MediaType(resp.Header) == upstream.EventStream {
		return resp, nil
	}
	upstream.Finish(resp)
	switch code := resp.StatusCode; {
	case code == http.StatusNotFound && r.id != "":
		return nil, upstream.ErrGone
	case upstream.SaysNothing(code), code == http.StatusConflict: // another stream is not closed yet
		return nil, fmt.Errorf("the MCP server answered GET with %d", code)
	default:
		return nil, fmt.Errorf("%w: it answered GET with %d", upstream.ErrNoStream, code)
	}
}

// Close ends the session upstream.
func (r *remote) Close(ctx context.Context, client http.Header) {
	if r.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, upstream.DialTimeout)
	defer cancel()
	resp, err := r.do(ctx, http.MethodDelete, r.header(client), nil) //nolint:bodyclose // Finish closes it
	if err != nil {
		r.host.Logger.Info("a session is not ended at the MCP server", "error", err)
		return
	}
	upstream.Finish(resp) // 405: sessions of this server end by themselves
}

// The pauses before the standalone stream is asked for again.
const (
	listenPause    = time.Second
	listenPauseMax = 30 * time.Second
	// pollPause is the shortest, whatever the upstream asks for with "retry"; after streams
	// that end at once without a message it grows to pollPauseMax.
	pollPause    = 500 * time.Millisecond
	pollPauseMax = 5 * time.Second
)

// pauseAfter returns the pause after a stream that ran for so long, before the next request for it: after a long
// run the first pause.
func pauseAfter(pause, ran time.Duration) time.Duration {
	if ran > listenPauseMax {
		return listenPause
	}
	return pause
}

// Listen keeps the upstream's standalone stream open, and stores its messages, until ctx
// ends or the upstream has no such stream.
func (r *remote) Listen(ctx context.Context, c *call.Call, client func() http.Header) {
	ctx, p := upstream.NewIdleTimer(ctx, 0, &r.host.Pauses)
	defer p.End()
	pause := listenPause
	opened := c.Cursor().ID != "" // by the previous bridge, else by this one
	for {
		resp, err := r.get(ctx, client(), c.Cursor().ID)
		c.WasTried()
		next := pause
		switch {
		case errors.Is(err, upstream.ErrGone) && opened:
			c.Scope.Session.Finish(upstream.ErrGone)
			return
		case errors.Is(err, upstream.ErrGone): // the server may have no route for GET, though MCP wants 405 then
		case errors.Is(err, upstream.ErrNoStream):
			if c.Cursor().ID == "" {
				return
			}
			r.host.Logger.Warn("the MCP server does not resume its standalone stream: messages may be missing", "session", c.Scope.Name, "error", err)
			c.Restart()
		case err == nil:
			opened = true
			b := upstream.NewBody(resp.Header, resp.Body, r.host.MaxBytes())
			began := time.Now()
			var came bool
			came, err = r.read(p, c, b)
			_ = resp.Body.Close()
			if errors.Is(err, call.ErrClosed) {
				return
			}
			if errors.Is(err, upstream.ErrTooLarge) {
				// The upstream would send it again. The messages between it and now are lost with it.
				c.Drop(host.DropTooLarge, err)
				c.Restart()
			}
			pause = pauseAfter(pause, time.Since(began))
			next = pause
			if b.Retry() > 0 {
				if came || time.Since(began) > pollPause {
					pause = pollPause
				}
				next = max(min(pause, pollPauseMax), b.Retry())
			}
		}
		if ctx.Err() != nil {
			return
		}
		r.host.Logger.Debug("the MCP server's standalone stream is asked for again", "session", c.Scope.Name, "stream", c.Stream, "in", next.String(), "error", err)
		if !r.host.Pause(ctx, next) {
			return
		}
		pause = min(2*pause, listenPauseMax)
	}
}

// Resume continues a call of another bridge, where the upstream offers that.
func (r *remote) Resume(ctx context.Context, c *call.Call, client http.Header) {
	if c.Cursor().ID == "" {
		c.End(upstream.ErrRestarted)
		return
	}
	ctx, p := c.WithIdleTimer(ctx)
	defer p.End()
	resp, err := r.reconnect(ctx, c, client, 0) //nolint:bodyclose // follow closes it
	if err == nil {
		err = r.follow(ctx, p, c, client, resp)
	}
	r.finish(c, client, err)
}
