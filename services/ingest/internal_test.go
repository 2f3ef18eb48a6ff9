package ingest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/micro"

	"rejoin/shared/auth"
	"rejoin/shared/backend"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
	"rejoin/shared/quota"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// H3: unread results end their batch when the memory has no room for them.
func TestResults_AreHeldWithinTheMemory(t *testing.T) {
	memory := quota.NewPool(1000)
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	over := 0
	r := newResults(here, func() { over++ }, memory, "")
	line := bytes.Repeat([]byte("x"), 300)
	for range 3 {
		r.add(line)
	}
	if over != 0 || memory.Used() != 900 {
		t.Errorf("ended %d times with %d bytes held", over, memory.Used())
	}
	r.add(line)
	if over != 1 || memory.Used() != 900 {
		t.Errorf("ended %d times with %d bytes held", over, memory.Used())
	}
	if lines := r.take(nil); len(lines) != 1200 { // what was begun is reported
		t.Errorf("%d bytes are told", len(lines))
	}
	if r.drop(); memory.Used() != 0 {
		t.Errorf("%d bytes are held at the end", memory.Used())
	}
}

// handlersOwn is a request whose methods that keep something for NATS's service are called by
// none, since they may be called by its handler's goroutine alone.
type handlersOwn struct {
	micro.Request

	t     *testing.T
	reply string
}

func (r handlersOwn) Reply() string { return r.reply }

func (r handlersOwn) Respond([]byte, ...micro.RespondOpt) error {
	r.t.Error("Respond is called")
	return nil
}

func (r handlersOwn) RespondJSON(any, ...micro.RespondOpt) error {
	r.t.Error("RespondJSON is called")
	return nil
}

func (r handlersOwn) Error(string, string, []byte, ...micro.RespondOpt) error {
	r.t.Error("Error is called")
	return nil
}

func TestRefuse_FromAnyGoroutine(t *testing.T) {
	nc := natstest.Start(t).Connect()
	s := &Service{backend: &backend.Backend{Conn: nc}}
	inbox := nc.NewRespInbox()
	answers, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	s.refuse(handlersOwn{t: t, reply: inbox}, session.ErrClosed)
	s.respondJSON(handlersOwn{t: t, reply: inbox}, 1)
	for _, want := range []string{string(web.CodeSessionClosed), ""} {
		if msg, err := answers.NextMsg(time.Minute); err != nil || msg.Header.Get(micro.ErrorHeader) != want {
			t.Errorf("%+v, %v; want %q", msg, err, want)
		}
	}
}

func TestProblems_EachError(t *testing.T) {
	secret := errors.New("10.0.0.7: secret")
	tests := map[string]struct {
		err    error
		status int
		code   web.Code
	}{
		"name":                 {event.ErrInvalidName, 400, web.CodeInvalidName},
		"json":                 {event.ErrInvalidJSON, 400, web.CodeInvalidJSON},
		"message":              {event.ErrInvalidMessage, 400, web.CodeInvalidMessage},
		"type":                 {event.ErrInvalidType, 400, web.CodeInvalidHeader},
		"reserved type":        {event.ErrReservedType, 400, web.CodeReservedType},
		"stream closed":        {fmt.Errorf("%w: %w", errStreamClosed, session.ErrClosed), 409, web.CodeStreamClosed},
		"opened again":         {fmt.Errorf("%w: %w", errFenced, errOpenedAgain), 503, web.CodeUnavailable},
		"stream closed, fence": {fmt.Errorf("%w: %w", errFenced, session.ErrClosed), 409, web.CodeSessionClosed},
		"opening unknown":      {fmt.Errorf("%w: %w", session.ErrUnavailable, eventlog.ErrUnknown), 503, web.CodeUnavailable},
		"session closed":       {session.ErrClosed, 409, web.CodeSessionClosed},
		"too many streams":     {errTooManyStreams, 409, web.CodeTooManyStreams},
		"rate":                 {&rateError{"session", "messages", time.Second}, 429, web.CodeRateLimited},
		"too many sessions":    {&session.FullError{Reason: session.FullShare}, 429, web.CodeTooManySessions},
		"session exists":       {session.ErrExists, 409, web.CodeSessionExists},
		"session not there":    {session.ErrNotFound, 404, web.CodeNotFound},
		"registry away":        {session.ErrUnavailable, 503, web.CodeUnavailable},
		"too large":            {eventlog.ErrTooLarge, 413, web.CodeBodyTooLarge},
		"full":                 {eventlog.ErrFull, 503, web.CodeStorageFull},
		"unknown":              {eventlog.ErrUnknown, 503, web.CodePublishUnknown},
		"log away":             {eventlog.ErrUnavailable, 503, web.CodeUnavailable},
		"busy":                 {errBusy, 503, web.CodeUnavailable},
		"stopping":             {errStopping, 503, web.CodeUnavailable},
		"close: unknown":       {fmt.Errorf("%w: %w", errCloseFailed, eventlog.ErrUnknown), 503, web.CodeUnavailable},
		"close: full":          {fmt.Errorf("%w: %w", errCloseFailed, eventlog.ErrFull), 503, web.CodeUnavailable},
		"deadline":             {context.DeadlineExceeded, 503, web.CodeUnavailable},
		"cancelled":            {context.Canceled, 503, web.CodeUnavailable},
		"mismatch":             {eventlog.ErrMismatch, 500, web.CodeInternal},
		"anything else":        {io.EOF, 500, web.CodeInternal},
		"a problem":            {web.New(web.CodeInvalidParameter, "x"), 400, web.CodeInvalidParameter},
		"a problem, wrapped":   {fmt.Errorf("x: %w", web.New(web.CodeInvalidHeader, "x")), 400, web.CodeInvalidHeader},
		"unavailable, and why": {errors.Join(eventlog.ErrUnavailable, context.DeadlineExceeded), 503, web.CodeUnavailable},
	}
	for name, tt := range tests {
		err := fmt.Errorf("%w", tt.err)
		if tt.status >= 404 {
			err = fmt.Errorf("%w: %w", tt.err, secret)
		}
		p := problem(err)
		if p.Status != tt.status || p.Code != tt.code {
			t.Errorf("%s: %d %s, want %d %s", name, p.Status, p.Code, tt.status, tt.code)
		}
		if strings.Contains(p.Detail, "secret") {
			t.Errorf("%s tells %q", name, p.Detail)
		}
		if (p.Status == 503 || p.Status == 429) != (web.Codes[p.Code].RetryAfter > 0) {
			t.Errorf("%s: status %d, Retry-After %s", name, p.Status, web.Codes[p.Code].RetryAfter)
		}
	}
	if p := problem(eventlog.ErrUnknown); !strings.Contains(p.Detail, "may have been stored") || !strings.Contains(p.Detail, "Idempotency-Key") {
		t.Errorf("unknown: %q", p.Detail)
	}
}

// Only a text in NDJSON waits for as long as its client lets it; each message for so long.
func TestRate_BatchWaitsAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for slow, want := range map[slowness]int{slowNever: 0, slowOnce: 10, slowEach: 10} {
			b := batch{slow: slow}
			tries := 0
			err := b.pace(func() error { tries++; return &rateError{"session", "messages", time.Second} })
			if _, ok := errors.AsType[*rateError](err); !ok || tries != want+1 {
				t.Errorf("%d: %d tries, %v", slow, tries, err)
			}
			if err := b.pace(func() error { return nil }); err != nil {
				t.Errorf("%d: %v", slow, err)
			}
		}
		over := make(chan struct{})
		close(over)
		for _, b := range []*batch{{trouble: over}, {stopping: over}, {over: over}} {
			b.slow = slowEach
			if err := b.pace(func() error { return &rateError{"session", "messages", time.Second} }); !errors.Is(err, errHalted) {
				t.Error(err)
			}
		}
	})
}

func TestPublish_GenerationOfSequence(t *testing.T) {
	gens := []event.Generation{{ID: "b", Start: 5}, {ID: "c", Start: 8}, {ID: "d", Start: 8}}
	for sequence, want := range map[uint64]string{1: "b", 5: "b", 7: "b", 8: "d", 100: "d"} {
		if got := generationOf(sequence, gens); got != want {
			t.Errorf("%d is in %s, want %s", sequence, got, want)
		}
	}
}

func FuzzSessionBody(f *testing.F) {
	for _, body := range []string{`{}`, `{"session":"s","metadata":{"a":1}}`, `{"session":null}`, `[]`, `null`, "{\"metadata\":{\"\xff\":1}}", `{"session":"a","session":"*"}`, `{"owner":"user-1","members":["b","a*","b"]}`, `{"members":[null]}`, `{"members":null}`, `{"owner":"\ud800"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := parseSession(body)
		if err != nil {
			if p := problem(err); p.Status >= 500 {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		if req.name != "" && event.CheckSession(req.name) != nil {
			t.Errorf("%q gives the name %q", body, req.name)
		}
		if len(req.members) > maxMembers || !slices.IsSorted(req.members) || len(req.members) != len(slices.Compact(slices.Clone(req.members))) {
			t.Errorf("%q gives the members %q", body, req.members)
		}
		for _, m := range req.members {
			if err := auth.Pattern(m).CheckSubject(); err != nil {
				t.Errorf("%q gives the member %q", body, m)
			}
		}
		if req.owner != "" && auth.CheckSubject(req.owner) != nil {
			t.Errorf("%q gives the owner %q", body, req.owner)
		}
		if req.metadata != nil && (req.metadata[0] != '{' || len(req.metadata) > maxMetadata) {
			t.Errorf("%q gives the metadata %q", body, req.metadata)
		}
	})
}

// FuzzLines reads any text as NDJSON: every line that is not empty is one element or
// one error, and an element's data lies in its line.
func FuzzLines(f *testing.F) {
	for _, s := range []string{
		"{\"jsonrpc\":\"2.0\",\"method\":\"m\"}\n", "\r\n\n", "{\"message\":{},\"key\":\"k\",\"type\":\"t\"}", "{\"message\":1,\"message\":2}", "[\n]", strings.Repeat("x", 4000) + "\n1", "{\"message\":null}", "\x00\n\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		want := 0
		for line := range bytes.SplitSeq(text, []byte("\n")) {
			if len(bytes.TrimSpace(line)) > 0 || len(line) > 1000+envelopeBytes {
				want++
			}
		}
		l := newLines(iotest.OneByteReader(bytes.NewReader(text)), 1000, func() {}, nil, "")
		l.envelopes = len(text)%2 == 0
		for got := 0; ; got++ {
			e, err := l.next()
			if errors.Is(err, io.EOF) {
				if got != want {
					t.Fatalf("%d elements in %q, want %d", got, text, want)
				}
				return
			}
			if _, ok := errors.AsType[*lineError](err); err != nil && !ok {
				t.Fatal(err)
			}
			if err == nil && !bytes.Contains(text, e.data) {
				t.Fatalf("%q is not in %q", e.data, text)
			}
		}
	})
}

// What waits for a client to read it counts until it is written, and no buffer outlives it.
func TestResults_LargeBuffers(t *testing.T) {
	client, server := net.Pipe()
	defer func() { _ = client.Close() }()
	defer func() { _ = server.Close() }()
	pool := quota.NewPool(64 << 20)
	r := newResults(server, func() {}, pool, "a")
	for range 8 {
		r.add(make([]byte, 1<<20))
	}
	lines := r.take(nil)
	err := r.write(bufio.NewWriter(writerFunc(func(b []byte) (int, error) {
		if used := pool.Used(); used < 8<<20 {
			t.Errorf("%d bytes of it count while it is written", used)
		}
		return len(b), nil
	})), lines)
	if err != nil || pool.Used() != 0 {
		t.Errorf("%v, %d bytes are counted for nothing", err, pool.Used())
	}
	r.add([]byte("line\n"))
	r.take(lines)
	if n := cap(r.lines); n > maxSpare {
		t.Errorf("a buffer of %d bytes is kept", n)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
