package ingest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

const (
	asNDJSON        = "application/x-ndjson"
	asMessages      = "application/vnd.rejoin.messages+json"
	asEnvelopes     = "application/vnd.rejoin.envelopes+json"
	asEnvelopeLines = "application/vnd.rejoin.envelopes+ndjson"
)

// batchAnswer is a summary.
type batchAnswer struct {
	Accepted, Duplicates, Refused, Unknown int
	LastID                                 *string
	Errors                                 []batchError
	Stopped                                *batchError
}

type batchError struct {
	Index  int
	Code   string
	Detail string
}

func (in *instance) postBatch(t *testing.T, kind, path, body string, headers ...string) batchAnswer {
	t.Helper()
	a := in.send(t, http.MethodPost, path, []byte(body), append(headers, "Content-Type", kind)...)
	if a.status != http.StatusOK || a.header.Get("Content-Type") != asJSON {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	var b batchAnswer
	if err := json.Unmarshal(a.body, &b); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return b
}

// beginBatch begins a request with lines that a test writes one after the other.
func (in *instance) beginBatch(t *testing.T, headers ...string) (lines *io.PipeWriter, answered <-chan answer) {
	t.Helper()
	body, lines := io.Pipe()
	req := must.Value(http.NewRequestWithContext(waittest.Context(t), http.MethodPost, in.url+batchPath, body))(t)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	req.Header.Set("Content-Type", asNDJSON)
	answers := make(chan answer, 1)
	go func() { answers <- in.do(t, req) }()
	return lines, answers
}

// messages returns the stored messages, in order.
func (s *system) messages(t *testing.T) (all []string) {
	t.Helper()
	for _, e := range s.events(t) {
		all = append(all, e.Type+" "+string(e.Data))
	}
	return all
}

const batchPath = "/v1/sessions/s/streams/t/events"

func TestBatch_Order(t *testing.T) {
	t.Parallel()
	const n = 3000
	lines, want := pings(n)
	for name, tt := range map[string]struct{ kind, body string }{
		"NDJSON":                       {asNDJSON, strings.Join(lines, "\n") + "\n"},
		"NDJSON, last line has no end": {"application/jsonl; charset=utf-8", strings.Join(lines, "\r\n\n \n")},
		"array":                        {asMessages, "[ " + strings.Join(lines, "\n, ") + "\n]"},
	} {
		t.Run(name, func(t *testing.T) {
			s, in := started(t)
			got := in.postBatch(t, tt.kind, batchPath, tt.body)
			if got.Accepted != n || got.Duplicates+got.Refused+got.Unknown+len(got.Errors) != 0 || got.Stopped != nil {
				t.Errorf("got %+v", got)
			}
			if diff := cmp.Diff(want, s.messages(t)); diff != "" {
				t.Error(diff)
			}
			id, err := event.ParseID(*got.LastID)
			if err != nil || id.Sequence != n+2 || id.Stream != "t" {
				t.Errorf("the last ID is %s, %v", *got.LastID, err)
			}
		})
	}
}

func TestBatch_OneBadMessage(t *testing.T) {
	lines := []string{
		`{"message":` + string(ping("0")) + `}`,
		`{"message":"2.0"`,
		`{"type":"tick","key":"a","message":` + string(ping("2")) + `}`,
		`{"message":` + string(ping(strings.Repeat("x", 1000))) + `}`,
		strings.Repeat("y", 100_000),
		`{"message":` + string(ping("5")) + `,"other":1}`,
		`{"message":` + string(ping("6")) + `,"key":""}`,
		`{"message":` + string(ping("7")) + `,"type":"gap"}`,
		`{"jsonrpc":"2.0","method":"m"}`,
		"\"\xff\"",
		`{"message":{"message":1,"key":2}}`,
		`[1]`,
	}
	want := []batchError{
		{Index: 1, Code: "invalid_json"},
		{Index: 3, Code: "body_too_large"},
		{Index: 4, Code: "body_too_large"},
		{Index: 5, Code: "invalid_body"},
		{Index: 6, Code: "invalid_body"},
		{Index: 7, Code: "reserved_type"},
		{Index: 8, Code: "invalid_body"},
		{Index: 9, Code: "invalid_json"},
		{Index: 11, Code: "invalid_body"},
	}
	stored := []string{"message " + string(ping("0")), "tick " + string(ping("2")), `message {"message":1,"key":2}`}

	s := newSystem(t, eventlog.Settings{Partitions: 1, MaxMessageBytes: 1000})
	in := s.start(t, testConfig())
	got := in.postBatch(t, asEnvelopeLines, batchPath, strings.Join(lines, "\n"))
	for i := range got.Errors {
		got.Errors[i].Detail = ""
	}
	if diff := cmp.Diff(want, got.Errors); diff != "" {
		t.Error(diff)
	}
	if got.Accepted != len(stored) || got.Refused != len(want) {
		t.Errorf("got %+v", got)
	}
	if diff := cmp.Diff(stored, s.messages(t)); diff != "" {
		t.Error(diff)
	}
}

func TestBatch_Repeated(t *testing.T) {
	s, in := started(t)
	three := strings.Join([]string{string(ping("0")), string(ping("1")), string(ping("2"))}, "\n")
	first := in.postBatch(t, asNDJSON, batchPath, three, "Idempotency-Key", "k")
	again := in.postBatch(t, asNDJSON, batchPath, three+"\n"+string(ping("3")), "Idempotency-Key", "k")
	if first.Accepted != 3 || again.Accepted != 4 || again.Duplicates != 3 {
		t.Errorf("first %+v, again %+v", first, again)
	}
	// A key of a line is the key of a request with that message alone.
	if b := in.postBatch(t, asEnvelopes, batchPath, `[{"key":"l","message":`+string(ping("4"))+`}]`, "Idempotency-Key", "k"); b.Duplicates != 0 {
		t.Errorf("under the key of its line: %+v", b)
	}
	in.post(t, "s", "t", ping("4"), "Idempotency-Key", "l").stored(t, true)
	// It is bound to its stream.
	if b := in.postBatch(t, asNDJSON, "/v1/sessions/s/streams/u/events", three, "Idempotency-Key", "k"); b.Duplicates != 0 {
		t.Errorf("in another stream: %+v", b)
	}
	if n := len(s.messages(t)); n != 8 {
		t.Errorf("%d events are stored, want 8", n)
	}
}

// M3: a batch that is no messages at all stops early.
func TestBatch_TooManyRefused(t *testing.T) {
	_, in := started(t)
	const most = 1000
	for kind, body := range map[string]string{
		asEnvelopes: "[" + strings.Repeat("0,", 5*most) + "0]",
		asNDJSON:    strings.Repeat("x\n", 5*most),
	} {
		got := in.postBatch(t, kind, batchPath, body)
		if got.Refused != most+1 || len(got.Errors) != most || got.Stopped == nil || got.Stopped.Index != most+1 || got.Stopped.Code != "invalid_body" {
			t.Errorf("%s: %d refused, %d errors, stopped %+v", kind, got.Refused, len(got.Errors), got.Stopped)
		}
	}
}

// Messages are stored by then: a refusal would say that they are not.
func TestBatch_NoMemoryForTheSummary(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	s.memory = quota.NewPool(64 << 10)
	in := s.start(t, testConfig())
	const most = 1000
	got := in.postBatch(t, asEnvelopes, batchPath, `[{"message":`+string(ping("0"))+`}`+strings.Repeat(",0", most)+"]")
	if got.Accepted != 1 || got.Refused != most || len(got.Errors) == 0 || got.Errors[0].Index != 1 || got.Stopped != nil {
		t.Errorf("got %+v", got)
	}
	if n := s.memory.Used(); n != 0 {
		t.Errorf("%d bytes still count", n)
	}
}

func TestBatch_LogIsDown(t *testing.T) {
	s, in := started(t)
	w, answered := in.beginBatch(t)
	write := func(id string) { _, _ = w.Write(append(ping(id), '\n')) } // fails once the answer is there
	write("0")
	waittest.Until(t, "the first one is stored", func() bool { return in.metric(t, "rejoin_ingest_published_total", "stored") == 1 })
	s.srv.Stop()
	defer in.expire()()
	go func() {
		for i := range 1000 {
			write(fmt.Sprint(i + 1))
		}
		_ = w.Close()
	}()
	a := <-answered
	var got batchAnswer
	if err := json.Unmarshal(a.body, &got); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	if got.Accepted != 1 || got.Stopped == nil || got.Stopped.Index != 1+got.Refused+got.Unknown || got.Stopped.Code != "unavailable" && got.Stopped.Code != "publish_unknown" {
		t.Errorf("got %s", a.body)
	}
}

// eachLine is a line of the results of each message.
type eachLine struct {
	Index     *int
	ID        string
	Duplicate *bool
	Code      string
	Accepted  *int
}

func TestBatch_ResultsInOrder(t *testing.T) {
	_, in := started(t)
	body := strings.Join([]string{string(ping("0")), "broken", string(ping("2"))}, "\n")
	var codes, ids []string
	lines := bufio.NewScanner(strings.NewReader(in.eachResult(t, batchPath, body)))
	for i := 0; lines.Scan(); i++ {
		var line eachLine
		must.NoError(t, json.Unmarshal(lines.Bytes(), &line))
		switch {
		case line.Index == nil:
			codes = append(codes, fmt.Sprint("accepted ", *line.Accepted))
		case *line.Index != i:
			t.Errorf("line %d is about message %d", i, *line.Index)
		case line.Code != "":
			codes = append(codes, line.Code)
		default:
			codes = append(codes, fmt.Sprint(*line.Duplicate))
			ids = append(ids, line.ID)
		}
	}
	if want := []string{"false", "invalid_json", "false", "accepted 2"}; !slices.Equal(codes, want) {
		t.Errorf("got %v, want %v", codes, want)
	}
	for i, text := range ids {
		if id, err := event.ParseID(text); err != nil || id.Sequence != uint64(i+3) {
			t.Errorf("ID %d is %s, %v", i, text, err)
		}
	}
}

// A client that writes everything before it reads anything must not wait for itself:
// the results are far more than the sockets hold.
func TestBatch_ClientReadsLast(t *testing.T) {
	t.Parallel()
	_, in := started(t)
	const n = 30_000
	conn := webtest.Dial(t, in.Addr().String(), "")
	must.NoError(t, conn.(*net.TCPConn).SetReadBuffer(64<<10)) //nolint:errcheck,forcetypeassert // it is one
	line := append(ping("0"), '\n')
	must.Value(fmt.Fprintf(conn, "POST /v1/sessions/s/streams/%s/events?results=each HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", strings.Repeat("t", event.MaxNameLen), asNDJSON, n*len(line)))(t)
	must.Value(conn.Write(bytes.Repeat(line, n)))(t)
	lines := strings.Split(strings.TrimSpace(webtest.ReadAnswer(t, bufio.NewReader(conn), http.MethodPost).Text), "\n")
	var sum batchAnswer
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &sum); err != nil || len(lines) != n+1 || sum.Accepted != n {
		t.Errorf("%d lines, the last is %s", len(lines), lines[len(lines)-1])
	}
}

// eachResult asks for the result of each message.
func (in *instance) eachResult(t *testing.T, path, body string) string {
	t.Helper()
	a := webtest.Ask(t, http.MethodPost, in.url+path+"?results=each", body, "Content-Type", asNDJSON)
	if a.Status != http.StatusOK {
		t.Fatalf("%d %s", a.Status, a.Text)
	}
	return a.Text
}

// postBatchEach asks for the result of each message, and returns the summary at the end.
func (in *instance) postBatchEach(t *testing.T, path, body string) (sum batchAnswer) {
	t.Helper()
	all := in.eachResult(t, path, body)
	lines := strings.Split(strings.TrimSpace(all), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &sum); err != nil || len(lines) != 1+sum.Accepted+sum.Refused+sum.Unknown {
		t.Fatalf("%v in %s", err, all)
	}
	return sum
}

// A line that the end of the connection has cut is no message, though it may look like one.
func TestBatch_CutLine(t *testing.T) {
	t.Parallel()
	s, in := started(t)
	var body strings.Builder
	for n := range 5000 {
		fmt.Fprintln(&body, 100_000+n)
	}
	const whole = 3000 // lines before the cut
	conn := webtest.Dial(t, in.Addr().String(), fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nIdempotency-Key: k\r\nContent-Length: %d\r\n\r\n%s", batchPath, asNDJSON, body.Len(), body.String()[:7*whole+3]))
	if tcp, ok := conn.(*net.TCPConn); !ok || tcp.CloseWrite() != nil {
		t.Fatal("the body is not cut")
	}
	var cut batchAnswer
	if err := json.Unmarshal([]byte(webtest.ReadAnswer(t, bufio.NewReader(conn), http.MethodPost).Text), &cut); err != nil || cut.Accepted != whole || cut.Stopped == nil || cut.Stopped.Index != whole {
		t.Errorf("%v, %+v, stopped %+v", err, cut, cut.Stopped)
	}
	if again := in.postBatch(t, asNDJSON, batchPath, body.String(), "Idempotency-Key", "k"); again.Duplicates != whole || again.Accepted != 5000 {
		t.Errorf("made again: %+v", again)
	}
	if all := s.messages(t); len(all) != 5000 || all[whole] != "message 103000" {
		t.Errorf("%d messages are stored, with %s at the cut", len(all), all[whole])
	}
}
