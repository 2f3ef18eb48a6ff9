package ingest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/ingest"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/leaktest"
	"rejoin/shared/metric/metrictest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

func TestMain(m *testing.M) {
	os.Exit(leaktest.Run(m, append(webtest.IgnoreFasthttp(), natstest.IgnoreLeaks()...)...))
}

// system is a NATS server, a log, and the ingests of a test.
type system struct {
	srv *natstest.Server
	b   *backend.Backend // the creator's; no ingest uses it
	log io.Writer        // of the ingests; nil: errors go to the test's output
	// memory is the pool of the clients of all ingests; nil bounds nothing.
	memory *quota.Pool
}

// instance is one ingest.
type instance struct {
	*ingest.Service
	b    *backend.Backend
	env  daemon.Env
	url  string
	http *http.Client
	stop func() error // ends it and returns what Run returned

	mu  sync.Mutex
	due chan struct{} // closed: the time of all requests is over
}

// expire ends the time of all requests, those under way and those to come, until the function
// that it returns is called. Without it they have the time of [testConfig].
func (in *instance) expire() (restore func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	close(in.due)
	return func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.due = make(chan struct{})
	}
}

func (in *instance) limit(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	in.mu.Lock()
	due := in.due
	in.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, d)
	go func() {
		select {
		case <-due:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func newSystem(t *testing.T, settings eventlog.Settings) *system {
	t.Helper()
	srv := natstest.Start(t)
	b := must.Value(backend.Create(waittest.Context(t), backend.Config{NATSURL: srv.URL()}, "creator", settings, daemon.NewEnv(nil).Log, fast()...))(t)
	t.Cleanup(b.Close)
	return &system{srv: srv, b: b}
}

// started is a system of one partition with an ingest.
func started(t *testing.T) (*system, *instance) {
	t.Helper()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in := s.start(t, testConfig())
	return s, in
}

func fast() []nats.Option {
	return []nats.Option{nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectJitter(0, 0)}
}

func testConfig() ingest.Config {
	return ingest.Config{IngestAddr: "127.0.0.1:0", AckTimeout: waittest.Timeout, MaxInFlight: 100}
}

// pause is longer than a slow machine stands still.
const pause = 6 * time.Second

// start runs an ingest until the test ends.
func (s *system) start(t *testing.T, cfg ingest.Config, opts ...nats.Option) *instance {
	t.Helper()
	// Why an answer is 500 is in the log alone.
	env := daemon.NewEnv(slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})))
	if s.log != nil {
		env.Log = slog.New(slog.NewTextHandler(s.log, nil))
	}
	if s.memory != nil {
		env.Memory = s.memory
	}
	b := must.Value(backend.Open(waittest.Context(t), backend.Config{NATSURL: s.srv.URL()}, "ingest", env.Log, append(fast(), opts...)...))(t)
	t.Cleanup(b.Close)
	service := must.Value(ingest.New(cfg, b, env))(t)
	in := &instance{Service: service, b: b, env: env, url: "http://" + service.Addr().String(), http: newClient(t), due: make(chan struct{})}
	service.LimitBy(in.limit)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- service.Run(ctx) }()
	in.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := in.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	in.send(t, http.MethodGet, "/", nil)                   // answered when it serves
	must.NoError(t, b.Conn.FlushTimeout(waittest.Timeout)) // and is known to NATS
	return in
}

func newClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{ExpectContinueTimeout: waittest.Timeout, MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: waittest.Timeout}
}

// answer is a client's answer; the fields of all bodies in one.
type answer struct {
	status int
	header http.Header
	body   []byte

	ID        string
	Duplicate *bool
	Session   string
	Life      string
	Partition int
	State     string
	Created   time.Time
	Metadata  json.RawMessage
	Code      string
	Detail    string
}

// send makes a request; headers are pairs of names and values.
func (in *instance) send(t *testing.T, method, path string, body []byte, headers ...string) answer {
	t.Helper()
	req := must.Value(http.NewRequestWithContext(context.Background(), method, in.url+path, bytes.NewReader(body)))(t)
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1])
	}
	return in.do(t, req)
}

func (in *instance) do(t *testing.T, req *http.Request) answer {
	t.Helper()
	resp, err := in.http.Do(req)
	if err != nil {
		t.Errorf("%s %s: %v", req.Method, req.URL, err)
		return answer{}
	}
	defer func() { _ = resp.Body.Close() }()
	return read(t, resp)
}

func read(t *testing.T, resp *http.Response) answer {
	t.Helper()
	a := answer{status: resp.StatusCode, header: resp.Header}
	var err error
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		t.Error(err)
	}
	if len(a.body) > 0 {
		if err := json.Unmarshal(a.body, &a); err != nil {
			t.Errorf("%v in %q", err, a.body)
		}
	}
	return a
}

const asJSON = "application/json"

func (in *instance) post(t *testing.T, session, stream string, body []byte, headers ...string) answer {
	t.Helper()
	return in.send(t, http.MethodPost, "/v1/sessions/"+session+"/streams/"+stream+"/events", body, append(headers, "Content-Type", asJSON)...)
}

// takes posts a message under a key until it is known to be stored.
func (in *instance) takes(t *testing.T, id, key string) {
	t.Helper()
	var a answer
	waittest.Until(t, "it takes events", func() bool {
		a = in.post(t, "s", "t", ping(id), "Idempotency-Key", key)
		return a.status != http.StatusServiceUnavailable
	})
	if a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// freeze ends the following of the registry: an ingest whose copy is held back.
func (in *instance) freeze() { in.b.Sessions.Close() }

func (in *instance) close(t *testing.T, path string) answer {
	t.Helper()
	return in.send(t, http.MethodDelete, "/v1/sessions/"+path, nil)
}

func ping(id string) []byte { return []byte(`{"jsonrpc":"2.0","id":"` + id + `","method":"ping"}`) }

// pings returns n messages, and how [system.messages] shows them.
func pings(n int) (all, shown []string) {
	for i := range n {
		m := string(ping(strconv.Itoa(i)))
		all, shown = append(all, m), append(shown, "message "+m)
	}
	return all, shown
}

// expect checks a problem document and its status.
func (a answer) expect(t *testing.T, status int, code string) {
	t.Helper()
	if a.status != status || a.Code != code || a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("got %d %s %s, want %d %s", a.status, a.header.Get("Content-Type"), a.body, status, code)
	}
	if (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) != (a.header.Get("Retry-After") != "") {
		t.Errorf("status %d has Retry-After %q", status, a.header.Get("Retry-After"))
	}
}

// got fails the test unless the answer has a status.
func (a answer) got(t *testing.T, status int) {
	t.Helper()
	if a.status != status {
		t.Fatalf("%d %s, want %d", a.status, a.body, status)
	}
}

func (a answer) stored(t *testing.T, duplicate bool) {
	t.Helper()
	if a.status != http.StatusCreated || a.ID == "" || a.Duplicate == nil || *a.Duplicate != duplicate || a.header.Get("Content-Type") != asJSON {
		t.Errorf("got %d %s, want 201 with duplicate %v", a.status, a.body, duplicate)
	}
}

// entries returns all that is in the log, partition by partition.
func (s *system) entries(t *testing.T) (all []eventlog.Entry) {
	t.Helper()
	for p := range s.b.Log.Settings().Partitions {
		state := must.Value(s.b.Log.Look(waittest.Context(t), p))(t)
		for n := uint64(1); n <= state.Last; n++ {
			e, err := s.b.Log.At(waittest.Context(t), p, n)
			if errors.Is(err, eventlog.ErrNotFound) {
				continue // removed
			}
			must.NoError(t, err)
			all = append(all, e)
		}
	}
	return all
}

// awaitEntries waits until so many entries were stored in partition 0, acknowledged or not.
func (s *system) awaitEntries(t *testing.T, n uint64) {
	t.Helper()
	waittest.Until(t, fmt.Sprintf("%d entries are stored", n), func() bool {
		state, err := s.b.Log.Look(waittest.Context(t), 0)
		return err == nil && state.Last >= n
	})
}

// last returns the sequence of the newest entry of partition 0.
func (s *system) last(t *testing.T) uint64 {
	t.Helper()
	state := must.Value(s.b.Log.Look(waittest.Context(t), 0))(t)
	return state.Last
}

// unacknowledged makes a request whose entry is stored without an acknowledgement, and whose time
// is over then.
func (s *system) unacknowledged(t *testing.T, in *instance, request func() answer) answer {
	t.Helper()
	before, answered := s.last(t), make(chan answer, 1)
	go func() { answered <- request() }()
	s.awaitEntries(t, before+1)
	defer in.expire()()
	return <-answered
}

// events returns all messages that are in the log.
func (s *system) events(t *testing.T) []eventlog.Entry {
	t.Helper()
	return slices.DeleteFunc(s.entries(t), func(e eventlog.Entry) bool { return e.Subject.Kind != event.Message })
}

// metric returns a metric's value, or the number of a histogram's observations.
func (in *instance) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return metrictest.Value(t, in.env.Metrics, name, labels...)
}
