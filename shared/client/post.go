package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"rejoin/shared/clocks"
)

// post sends messages of one stream in one request and sets their verdicts, which
// are all untried before. The error is the reason why some messages have to be sent again;
// nil when all have an outcome.
func (p *Publisher) post(to address, batch []*entry, verdicts []verdict) error {
	lines := make([][]byte, len(batch))
	for i, e := range batch {
		lines[i] = e.line
	}
	body := bytes.Join(lines, nil)
	g := newGuard(p.ctx)
	defer g.close()
	doubt, doubtful := p.oldestDoubt(batch)
	if doubtful {
		defer time.AfterFunc(p.cfg.RepeatWithin-doubt.Until(p.now()), func() { g.cancel(context.DeadlineExceeded) }).Stop()
	}
	g.expect(p.cfg.AnswerTimeout)

	// Without a connection nothing can have arrived. With one, anything can. A transport that does not report
	// connections, as that of js/wasm, may have sent the bytes that it has read.
	var reported, connected, read atomic.Bool
	ctx := httptrace.WithClientTrace(g.ctx, &httptrace.ClientTrace{
		GetConn: func(string) { reported.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	late := func() bool { return doubt.Until(p.now()) >= p.cfg.RepeatWithin }
	reading := func() {
		read.Store(true)
		g.expect(p.cfg.AnswerTimeout) // the part before was taken
	}
	repetition := func() (io.ReadCloser, error) { return timely{bytes.NewReader(body), late, reading}, nil }
	first := timely{bytes.NewReader(body), func() bool { return doubtful && late() }, reading}
	resp, err := p.send(ctx, to, first, len(body), repetition)
	if err != nil {
		sent := !errors.Is(err, errNoToken) && (connected.Load() || read.Load() && !reported.Load())
		err = g.why(err)
		if errors.Is(err, errSilent) {
			p.endpoint.rest() // the idle connections may be dead, too
		}
		if sent {
			all(verdicts, unknown, err)
		} else {
			all(verdicts, untried, err)
		}
		return err
	}
	defer func() { _ = resp.Body.Close() }() // the body was read, or the outcome is unknown
	if resp.StatusCode != http.StatusOK {
		return rejected(refusal(resp), answersAnother(resp, http.MethodPost), verdicts)
	}
	all(verdicts, unknown, errEnded)
	err = readAnswer(guarded{body: resp.Body, guard: g, within: p.cfg.AnswerTimeout}, verdicts)
	if err == nil {
		drain(resp.Body, g)
		return firstFailure(verdicts)
	}
	err = g.why(err)
	for i := range verdicts {
		if verdicts[i].kind == unknown && errors.Is(verdicts[i].err, errEnded) {
			verdicts[i].err = err
		}
	}
	return err
}

// oldestDoubt returns when the first attempt began that may have stored a message of the batch, and whether
// there was one before now.
func (p *Publisher) oldestDoubt(batch []*entry) (oldest clocks.Instant, doubtful bool) {
	oldest = p.now()
	for _, e := range batch {
		if e.isDoubtful() && (!doubtful || e.doubt.Until(oldest) > 0) {
			oldest, doubtful = e.doubt, true
		}
	}
	return oldest, doubtful
}

// timely is the body of a request. A repeated one must not arrive when the log has forgotten its keys: the
// timer of the request stands still while the machine is suspended.
type timely struct {
	body    io.Reader
	late    func() bool
	reading func() // is called before each read
}

func (t timely) Read(p []byte) (int, error) {
	if t.late() {
		return 0, context.DeadlineExceeded
	}
	t.reading()
	return t.body.Read(p)
}

func (timely) Close() error { return nil }

// send sends a request. Its body is repetition when net/http repeats it.
func (p *Publisher) send(ctx context.Context, to address, body io.Reader, size int, repetition func() (io.ReadCloser, error)) (*http.Response, error) {
	path := eventsPath(to.session, to.stream) + "?results=each"
	req, err := p.endpoint.request(ctx, http.MethodPost, path, body)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Content-Type", "application/vnd.rejoin.envelopes+ndjson")
	req.Header.Set("Accept", "application/x-ndjson")
	// Every line has a key, so net/http may send the request again by itself when a
	// connection that it kept turns out to be closed. An empty value is not sent.
	req.Header["Idempotency-Key"] = []string{}
	req.ContentLength, req.GetBody = int64(size), repetition
	return p.endpoint.do(req)
}

// rejected sets the verdicts of a request that was answered with a problem, or that a redirect changed into another.
func rejected(problem *Error, another bool, verdicts []verdict) error {
	switch {
	case len(verdicts) > 1 && !another && (problem.Status == http.StatusRequestEntityTooLarge || problem.Status == http.StatusForbidden && problem.Code == ""):
		all(verdicts, untried, problem) // fewer messages are sent next
	case !passing(problem.Status) && another:
		all(verdicts, refused, fmt.Errorf("%w: %w", ErrUnknown, problem))
		return nil
	case !passing(problem.Status):
		all(verdicts, refused, problem)
		return nil
	case another:
		all(verdicts, unknown, problem)
	case problem.Code == codeUnavailable, problem.Code == codeStorageFull,
		problem.Status == http.StatusTooManyRequests, problem.Status == http.StatusTooEarly:
		all(verdicts, untried, problem)
	default:
		// A proxy's 202, 303, 502 or 504, for example: the request may have reached the server.
		all(verdicts, unknown, problem)
	}
	return problem
}

// firstFailure returns the error of the first message that has to be sent again.
func firstFailure(verdicts []verdict) error {
	for _, v := range verdicts {
		if v.kind == untried || v.kind == unknown {
			return v.err
		}
	}
	return nil
}

// drainTimeout bounds the wait for the end of an answer that has reported all outcomes.
const drainTimeout = time.Second

// drain reads an answer to its end, so that its connection can be used again.
func drain(body io.Reader, g *guard) {
	g.expect(drainTimeout)
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 1<<10)) // or there will be another connection
}
