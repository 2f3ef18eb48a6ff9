package e2e

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rejoin "rejoin/shared/client"
	"rejoin/shared/event"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

var (
	outage    = flag.Duration("outage", 3*time.Second, "how long NATS is away in the test of its being killed")
	natsKills = flag.Int("nats-kills", 0, "how often it is killed again then, within a second of its start")
)

// Each acknowledged event is in the log once and in order, and each subscriber receives
// it once, though NATS is killed under ingest, edge and janitor meanwhile.
func TestGoClient_NATSIsKilled(t *testing.T) {
	t.Parallel()
	const sessions, streams, before, behind = 6, 12, 3000, 3000
	s := startServices(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*waittest.Timeout+*outage+time.Duration(*natsKills)*5*time.Second)
	defer cancel()
	tr := newTraffic(t, rejoin.PublisherConfig{URL: s.ingest, MaxBatchMessages: 20, MaxBufferedMessages: 600, MaxRetry: 500 * time.Millisecond})
	for i := range streams {
		session := fmt.Sprint("outage", i%sessions)
		tr.write(ctx, session, fmt.Sprint(i))
		tr.read(ctx, s.edge, session, fmt.Sprint(i))
	}
	readSessions := func() {
		for i := range sessions {
			tr.read(ctx, s.edge, fmt.Sprint("outage", i), "")
		}
	}
	readSessions()
	tr.more(ctx, before)
	s.nats.kill()
	atKill := tr.stored.Load()
	time.Sleep(*outage) // the outage that is tested
	// The publisher's buffer may have been stored before, and results that the writers have not looked at.
	if n := tr.stored.Load() - atKill; n > 600+streams*(unseen+1) {
		t.Errorf("%d messages were stored without NATS", n)
	}
	s.nats.start()
	for i := range *natsKills {
		time.Sleep(time.Duration(50+rand.IntN(600)) * time.Millisecond) // while generations begin
		s.nats.kill()
		s.nats.start()
		if tr.permit(behind); i%8 == 0 {
			tr.more(ctx, behind/10)
		}
	}
	tr.more(ctx, behind)
	tr.end(ctx, s.ingest)
	readSessions() // by subscribers that connect later
	tr.reading.Wait()
	tr.compare()
	t.Logf("%d messages stored, %d of them behind an outage of %s", tr.stored.Load(), tr.stored.Load()-atKill, *outage)
}

// Each acknowledged event is stored once, and a publisher's events arrive in its order,
// also when ingest, the log and the edge fail meanwhile: all of them end with the program
// here.
func TestGoClient_ProgramIsKilled(t *testing.T) {
	t.Parallel()
	const streams, kills = 3, 3
	p := startProc(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*waittest.Timeout)
	defer cancel()
	tr := newTraffic(t, rejoin.PublisherConfig{URL: p.api(), MaxBatchMessages: 50, MaxBufferedMessages: 300, MaxRetry: 200 * time.Millisecond})
	for i := range streams {
		tr.write(ctx, "client", fmt.Sprint(i))
		tr.read(ctx, p.api(), "client", fmt.Sprint(i))
	}
	for range kills {
		tr.more(ctx, 1500)
		p.kill()
		p.start()
	}
	tr.more(ctx, 1500)
	tr.end(ctx, p.api())
	tr.compare()
}

// traffic is the messages that writers publish to streams, with one publisher, and readers receive.
type traffic struct {
	t         *testing.T
	publisher *rejoin.Publisher
	client    *http.Client // of readers
	stored    atomic.Int64 // messages
	allowed   int64
	allow     chan struct{} // one for each message that is allowed and not published
	stopped   chan struct{} // closed when no more is published

	writers          []*writer
	readers          []*reader
	writing, reading sync.WaitGroup

	mu    sync.Mutex
	wrong []string
}

func newTraffic(t *testing.T, cfg rejoin.PublisherConfig) *traffic {
	t.Helper()
	publisher := must.Value(rejoin.NewPublisher(cfg))(t)
	return &traffic{t: t, publisher: publisher, allow: make(chan struct{}, 1<<14), stopped: make(chan struct{})}
}

// fail notes the error that ends a writer or a reader.
func (tr *traffic) fail(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.wrong = append(tr.wrong, fmt.Sprintf(format, args...))
}

// failures returns the errors so far.
func (tr *traffic) failures() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.Clone(tr.wrong)
}

// write has a writer publish to a stream until end.
func (tr *traffic) write(ctx context.Context, session, stream string) {
	w := &writer{traffic: tr, session: session, stream: stream}
	tr.writers = append(tr.writers, w)
	tr.writing.Go(func() { w.run(ctx) })
}

// read has a reader follow a stream, or all of a session, to its end.
func (tr *traffic) read(ctx context.Context, url, session, stream string) {
	r := &reader{traffic: tr, url: url, session: session, stream: stream}
	tr.readers = append(tr.readers, r)
	tr.reading.Go(func() { r.run(ctx) })
}

// ahead is how many messages are published besides those that a test waits for, so that some are on their way when
// it kills something. Without a limit, writers would publish for as long as it takes servers to start again.
const ahead = 1000

// permit has n more messages published, and ahead, and returns how many are stored then.
func (tr *traffic) permit(n int64) (target int64) {
	target = tr.stored.Load() + n
	for ; tr.allowed < target+ahead; tr.allowed++ {
		tr.allow <- struct{}{}
	}
	return target
}

// more waits until n more messages are stored.
func (tr *traffic) more(ctx context.Context, n int64) {
	tr.t.Helper()
	target := tr.permit(n)
	waittest.Until(tr.t, "messages are stored", func() bool { return tr.stored.Load() >= target || ctx.Err() != nil })
}

// end stops the writers and closes their sessions, which ends their readers' streams.
func (tr *traffic) end(ctx context.Context, ingest string) {
	tr.t.Helper()
	close(tr.stopped)
	tr.writing.Wait()
	if err := tr.publisher.Close(ctx); err != nil {
		tr.t.Error(err)
	}
	closed := map[string]bool{}
	for _, w := range tr.writers {
		if !closed[w.session] {
			closed[w.session] = true
			closeAt(tr.t, ingest+"/v1/sessions/"+w.session)
		}
	}
	tr.reading.Wait()
}

// compare expects of each reader the acknowledged events of the writers of its stream or session. Of an event whose
// first acknowledgement was lost the writer's ID may be of the server's next life: another tag for the same
// sequence.
func (tr *traffic) compare() {
	tr.t.Helper()
	for _, wrong := range tr.failures() {
		tr.t.Error(wrong)
	}
	for _, w := range tr.writers {
		for i, r := range tr.readers {
			if r.session != w.session || r.stream != "" && r.stream != w.stream {
				continue
			}
			if got := r.sequences[w.stream]; len(got) != len(w.sequences) || r.stream != "" && !slices.Equal(got, w.sequences) {
				tr.t.Errorf("stream %s, reader %d at %s: %d of %d messages, or others", w.stream, i, r.url, len(got), len(w.sequences))
			}
		}
	}
}

// unseen is how many results a writer may be behind its publishing.
const unseen = 50

// writer publishes to a stream until it is stopped, half of it under keys of its own.
type writer struct {
	*traffic

	session, stream string

	sequences []uint64     // of the stored events, in the order of publishing
	count     atomic.Int64 // of them
}

// mayPublish waits until the writer may publish another message, and returns false when it is to end.
func (w *writer) mayPublish(ctx context.Context) bool {
	select {
	case <-w.allow:
		return true
	case <-w.stopped:
	case <-ctx.Done():
	}
	return false
}

func (w *writer) run(ctx context.Context) {
	results := make(chan *rejoin.Result, unseen)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		for r := range results {
			s, err := r.Wait(ctx)
			id, err2 := event.ParseID(s.ID)
			if err = cmp.Or(err, err2); err != nil {
				w.fail("stream %s: message %d: %v", w.stream, len(w.sequences), err)
			}
			w.sequences = append(w.sequences, id.Sequence)
			w.count.Add(1)
			w.stored.Add(1)
		}
	})
	for n := 0; w.mayPublish(ctx); n++ {
		m := rejoin.Message{Session: w.session, Stream: w.stream, Data: []byte(numbered(n))}
		if n%2 == 0 {
			m.Key = fmt.Sprintf("key %d", n) // the same on all streams
		}
		r, err := w.publisher.Publish(ctx, m)
		if err != nil {
			break // the context's, and then the results have it as well
		}
		results <- r
	}
	close(results)
	waiting.Wait()
}

// reader follows a stream, or all of a session, to its end.
type reader struct {
	*traffic

	url, session, stream string

	sequences map[string][]uint64 // by stream
	count     atomic.Int64        // of them
}

func (r *reader) run(ctx context.Context) {
	r.sequences = map[string][]uint64{}
	subscriber, err := rejoin.NewSubscriber(rejoin.SubscriberConfig{URL: r.url, Session: r.session, Stream: r.stream, MaxRetry: 500 * time.Millisecond, HTTPClient: r.client})
	if err != nil {
		r.fail("%v", err)
		return
	}
	for e, err := range subscriber.Events(ctx) {
		stream := cmp.Or(r.stream, e.Stream)
		n := len(r.sequences[stream])
		if err != nil || e.Kind != rejoin.KindMessage || string(e.Message) != numbered(n) {
			r.fail("%s/%s at %s: in place of message %d comes %+v, %v", r.session, stream, r.url, n, e, err)
			return
		}
		id, _ := event.ParseID(e.ID) // without one it is another than the writer's
		r.sequences[stream] = append(r.sequences[stream], id.Sequence)
		r.count.Add(1)
	}
}

// services are the programs of one service each, on a NATS server of their own.
type services struct {
	nats         *natsProc
	ingest, edge string // URLs
}

func startServices(t *testing.T, ingest ...string) services {
	t.Helper()
	s := services{nats: newNATS(t, "")}
	s.nats.start()
	none := "-1"
	startService(t, "janitor", s.nats.flag(), "--max-events-per-stream="+none, "--max-events-per-session="+none, "--max-bytes-per-session="+none)
	s.ingest = startService(t, "ingest", append(ingest, s.nats.flag())...).url
	s.edge = startService(t, "sse-edge", s.nats.flag()).url
	return s
}

// startService starts the program of a service. Unless the args have its address, it has a port of its own.
func startService(t testing.TB, name string, args ...string) *program {
	t.Helper()
	flag, says := "--"+strings.TrimPrefix(name, "sse-")+"-addr", "bridge is open"
	for msg, of := range listening {
		if of == flag {
			says = msg
			args = append([]string{flag + "=127.0.0.1:0"}, args...) // the last one of a flag counts
		}
	}
	switch name {
	case "sse-edge":
		args = append(args, "--drain=0s")
	case "janitor":
		args = append([]string{ofPartitions}, args...)
	}
	return startProgram(t, "rejoin/services/"+name+"/cmd/"+name, says, args...)
}

// program is a program of one service, running.
type program struct {
	*process

	url string // that its log named, if it did
}

// startProgram starts a program, which ends with the test, and waits until it is ready and its log
// has a message: with the address, if it has one. A flag with port 0 is given a port that no other
// program listens on until the test ends, also after the program was killed.
func startProgram(t testing.TB, pkg, says string, args ...string) *program {
	t.Helper()
	args = append(slices.Clone(args), "--log-format=json", "--admin-addr=127.0.0.1:0")
	for i, arg := range args {
		if addr, ok := strings.CutSuffix(arg, ":0"); ok {
			args[i] = fmt.Sprintf("%s:%d", addr, natstest.FreePort(t))
		}
	}
	cmd := exec.Command(built(t, pkg), args...) //nolint:noctx // launch ends it
	cmd.Env = withoutRejoin(os.Environ())
	p := &program{process: launch(t, cmd)}
	waittest.Until(t, path.Base(pkg)+" is ready", func() bool {
		a, err := try(http.MethodGet, "http://"+p.log.attr("admin port open", "addr")+"/readyz", "")
		return err == nil && a.status == http.StatusOK && p.log.attr(says, "msg") != ""
	})
	p.url = "http://" + p.log.attr(says, "addr")
	return p
}

// natsProc is a NATS server in a process of its own, which can be killed.
type natsProc struct {
	*process

	t                   *testing.T
	addr, config, store string
}

// newNATS returns a server that is not started yet, with more in its configuration. Without a limit it would
// promise logs no more than three quarters of the disk that is free.
func newNATS(t *testing.T, more string) *natsProc {
	t.Helper()
	dir := t.TempDir()
	n := &natsProc{t: t, addr: fmt.Sprintf("127.0.0.1:%d", natstest.FreePort(t)), config: filepath.Join(dir, "nats.conf"), store: filepath.Join(dir, "store")}
	text := fmt.Sprintf("max_payload: 2MB\n%slisten: %q\njetstream { store_dir: %q, max_file_store: 16GB }\n", more, n.addr, n.store)
	must.NoError(t, os.WriteFile(n.config, []byte(text), 0o600))
	return n
}

func (n *natsProc) urls() string { return "nats://" + n.addr }

func (n *natsProc) flag() string { return "--nats-url=" + n.urls() }

func (n *natsProc) start() {
	n.t.Helper()
	n.process = launch(n.t, exec.Command(built(n.t, "github.com/nats-io/nats-server/v2"), "-c", n.config)) //nolint:noctx // launch ends it
	waittest.Until(n.t, "NATS listens", func() bool { return listens(n.addr) })
}

// listens reports whether a server accepts connections.
func listens(addr string) bool {
	conn, err := net.Dial("tcp", addr) //nolint:noctx // of this machine
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}
