package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/ingest"
	"rejoin/services/janitor"
	edge "rejoin/services/sse-edge"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/must"
	"rejoin/shared/natsconn"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/simnet"
	"rejoin/shared/waittest"
)

// world is one installation under one schedule.
//
//	driver (the test's goroutine) ── steps ──▶ hosts: edges, ingest, janitor
//	                                      ├──▶ publishers, one goroutine a stream
//	                                      ├──▶ subscribers, one goroutine each
//	                                      └──▶ tasks: closes, checks of gaps
type world struct {
	t     *testing.T
	sc    schedule
	begun time.Time
	nats  *natstest.Server
	net   *simnet.Net             // in virtual time; nil for the system's
	links map[string]*simnet.Link // of each process to NATS, in virtual time
	truth *truth
	torn  map[place]bool   // whose end or seal a torn block has taken; see tear
	own   *backend.Backend // clears and direct publishes
	feed  *eventlog.Feed   // shared by the first edge and the janitors; nil if none is shared
	trace *waittest.Buffer // the services' logs, and the steps

	edges       []*host
	ingest      *host
	janitors    []*host // one or two
	subscribers []*subscriber
	publishers  []*publisher
	client      *http.Client
	tasks       sync.WaitGroup
	writing     sync.WaitGroup // of those, the ones that write to the log
	watch       sync.WaitGroup // ends with ctx
	ctx         context.Context
	cancel      context.CancelFunc

	mu         sync.Mutex
	violations []string
	doubt      doubt                     // when a gap may be uncertain
	lives      lives                     // of a log that is rolled back
	processed  map[string]map[int]uint64 // by edge and partition: the last sequence that it has sent
	attempts   map[place][]*attempt      // to publish
	closes     map[place]*closing        // of streams and sessions
	tally      map[string]int
	number     int
}

// fast makes clients of NATS reconnect quickly, and later than the truth does.
var fast = []nats.Option{nats.ReconnectWait(25 * time.Millisecond), nats.ReconnectJitter(15*time.Millisecond, 15*time.Millisecond)}

func newWorld(t *testing.T, sc schedule) *world {
	w := &world{
		t: t, sc: sc, begun: time.Now(), trace: &waittest.Buffer{}, torn: map[place]bool{},
		doubt:     doubt{unread: make([]time.Time, sc.settings.Partitions)},
		processed: map[string]map[int]uint64{}, attempts: map[place][]*attempt{}, closes: map[place]*closing{}, tally: map[string]int{},
	}
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	w.client = &http.Client{Transport: transport}
	if sc.simulated {
		w.net, w.links = simnet.New(), map[string]*simnet.Link{}
		transport.DialContext = func(_ context.Context, _, addr string) (net.Conn, error) { return w.net.Dial(addr, nil) }
	}
	w.nats = w.startNATS(t.TempDir())
	w.ctx, w.cancel = context.WithCancel(context.Background())
	t.Cleanup(w.stop)
	ctx, cancel := w.bounded()
	defer cancel()
	url := w.nats.URL()
	w.own = must.Value(backend.Create(ctx, backend.Config{NATSURL: url}, "test", sc.settings, w.logger("test"), w.dial("test")...))(t)
	if sc.copies {
		w.truth = emptyTruth(sc.settings.Partitions) // each life has its own
	} else {
		audit := w.nats.Connect(nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0))
		w.truth = newTruth(t, audit, sc.settings.Partitions)
	}
	w.watch.Go(w.watchUnread)

	if sc.seed%2 == 0 { // as in the standalone program
		w.feed = eventlog.NewFeed()
	}
	w.janitors = append(w.janitors, w.newJanitor(url, 0))
	if sc.two {
		w.janitors = append(w.janitors, w.newJanitor(url, 1))
	}
	w.ingest = w.host("ingest", func(ctx context.Context, log *slog.Logger, opened func(string)) error {
		b, err := backend.Open(ctx, w.config(url, "ingest"), "ingest", log, w.dial("ingest")...)
		if err != nil {
			return err
		}
		defer b.Close()
		s, err := ingest.New(ingest.Config{IngestAddr: "127.0.0.1:0", AckTimeout: ackTimeout, MaxInFlight: 100}, b, w.env(log))
		if err != nil {
			return err
		}
		opened(s.Addr().String())
		return s.Run(ctx)
	})
	for i, plan := range sc.edges {
		name := fmt.Sprintf("edge %d", i)
		w.edges = append(w.edges, w.host(name, func(ctx context.Context, log *slog.Logger, opened func(string)) error {
			b, err := backend.Open(ctx, w.config(url, name), "edge", log, w.dial(name)...)
			if err != nil {
				return err
			}
			defer b.Close()
			if i == 0 {
				b.Log.Share(w.feed)
			}
			cfg := edge.Config{EdgeAddr: "127.0.0.1:0"}
			cfg.WindowBytes, cfg.WindowBackfill, cfg.PartitionLinger = flagtype.Bytes(plan.window), flagtype.Bytes(plan.backfill), flagtype.Duration(plan.linger)
			cfg.LogReads, cfg.LedgerPatience = plan.reads, sc.patience
			cfg.Heartbeat, cfg.Retry, cfg.MaxAge, cfg.WriteTimeout, cfg.Drain = plan.heartbeat, 5*time.Millisecond, time.Second, 2*time.Second, 5*time.Millisecond
			cfg.MaxConnections, cfg.MaxSessionConnections, cfg.MaxAddressConnections = 1000, 1000, 1000
			cfg.MaxConnectionSessions = 100
			s, err := edge.New(cfg, b, w.env(log))
			if err != nil {
				return err
			}
			opened(s.Addr().String())
			return s.Run(ctx)
		}))
	}
	for _, j := range w.janitors {
		j.start()
	}
	w.ingest.start()
	for _, e := range w.edges {
		e.start()
	}
	if !w.wait(time.Now().Add(checkTime), func() bool { addr, _ := w.ingest.at(); return addr != "" }) {
		t.Fatal("ingest did not start")
	}
	for i := range len(sessionNames) * len(streamNames) {
		session, stream := streamAt(i)
		w.publishers = append(w.publishers, newPublisher(w, place{session, stream}))
	}
	for i, plan := range sc.subs {
		w.subscribers = append(w.subscribers, newSubscriber(w, i, plan))
	}
	return w
}

// startNATS runs a NATS server on a folder.
func (w *world) startNATS(folder string) *natstest.Server {
	if w.sc.simulated {
		return natstest.StartInMemory(w.t, folder)
	}
	return natstest.StartIn(w.t, folder)
}

// config returns the backend's configuration for a process, with a clock of its own.
func (w *world) config(url, process string) backend.Config {
	skew := w.sc.skew(process)
	if skew == 0 {
		return backend.Config{NATSURL: url}
	}
	w.count("a clock is wrong")
	return backend.Config{NATSURL: url, Now: func() time.Time { return time.Now().Add(skew) }}
}

// dial returns how a process connects to NATS: in virtual time over a link of its own.
func (w *world) dial(process string) []nats.Option {
	if !w.sc.simulated {
		return fast
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	link := w.links[process]
	if link == nil {
		link = simnet.NewLink()
		w.links[process] = link
	}
	return append([]nats.Option{nats.InProcessServer(linked{w.nats, link})}, fast...)
}

// linked is a NATS server behind a link.
type linked struct {
	server *natstest.Server
	link   *simnet.Link
}

// InProcessConn returns a connection over the link. No connection begins while that stands still:
// nats.go holds a lock meanwhile, and virtual time stands still while a goroutine waits for one.
func (l linked) InProcessConn() (net.Conn, error) {
	if l.link.Stalled() {
		return nil, os.ErrDeadlineExceeded
	}
	to, err := l.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	here, there := simnet.Pipe(l.link)
	go forward(there, to)
	go forward(to, there)
	return here, nil
}

func forward(from, to net.Conn) {
	_, _ = io.Copy(to, from) // an end in one direction ends both
	_, _ = from.Close(), to.Close()
}

// env returns the environment of a service of the world.
func (w *world) env(log *slog.Logger) daemon.Env {
	env := daemon.NewEnv(log)
	if w.net != nil {
		env.Listen = func(string, string) (net.Listener, error) { return w.net.Listen(), nil }
	}
	return env
}

// newJanitor returns the host of a janitor; number is its number among those of a world.
func (w *world) newJanitor(url string, number int) *host {
	name := fmt.Sprintf("janitor %d", number)
	return w.host(name, func(ctx context.Context, log *slog.Logger, _ func(string)) error {
		b, err := backend.Create(ctx, w.config(url, name), "janitor", w.sc.settings, log, w.dial(name)...)
		if err != nil {
			return err
		}
		defer b.Close()
		b.Log.Share(w.feed)
		if w.sc.crashes {
			defer context.AfterFunc(ctx, b.Conn.Close)()
		}
		s, err := janitor.New(janitor.Config{
			Interval: w.sc.sweep, Lease: 3 * time.Second, ClosedGrace: w.sc.grace, TombstoneTTL: w.sc.tombstone, SyncInterval: w.sc.sync,
		}, b, w.env(log))
		if err != nil {
			return err
		}
		return s.Run(ctx)
	})
}

const ackTimeout = 400 * time.Millisecond

func (w *world) logger(name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(w.trace, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Duration("t", time.Since(w.begun).Round(10*time.Microsecond))
		}
		return a
	}})).With("who", name)
}

// stop ends everything and waits for it.
func (w *world) stop() {
	for _, s := range w.subscribers {
		s.end()
	}
	for _, p := range w.publishers {
		p.end()
	}
	w.cancel()
	w.tasks.Wait()
	w.watch.Wait()
	w.client.CloseIdleConnections()
	var hosts sync.WaitGroup
	for _, h := range append(append([]*host{}, w.edges...), append(w.janitors, w.ingest)...) {
		if h != nil {
			hosts.Go(h.stop)
		}
	}
	hosts.Wait()
	if w.own != nil {
		w.own.Close()
	}
}

func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf("%8s ", time.Since(w.begun).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tally[what]++
}

func (w *world) say(format string, args ...any) {
	_, _ = fmt.Fprintf(w.trace, "t=%s ---- "+format+"\n", append([]any{time.Since(w.begun).Round(10 * time.Microsecond)}, args...)...)
}

// host runs a service, and runs it again.
type host struct {
	w     *world
	name  string
	serve func(ctx context.Context, log *slog.Logger, opened func(addr string)) error
	busy  atomic.Bool // a restart is under way

	mu     sync.Mutex
	addr   string
	life   int
	cancel context.CancelFunc
	done   chan struct{}
}

func (w *world) host(name string, serve func(context.Context, *slog.Logger, func(string)) error) *host {
	return &host{w: w, name: name, serve: serve}
}

func (h *host) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	h.life++
	life, done := h.life, make(chan struct{})
	h.cancel, h.done = cancel, done
	go func() {
		defer close(done)
		err := h.serve(ctx, h.w.logger(fmt.Sprintf("%s.%d", h.name, life)), func(addr string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.life == life && ctx.Err() == nil {
				h.addr = addr
			}
		})
		if ctx.Err() == nil {
			h.w.violate("%s ended by itself: %v", h.name, err)
		}
	}()
}

func (h *host) stop() {
	h.mu.Lock()
	cancel, done := h.cancel, h.done
	h.addr = ""
	h.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

// at returns the address of the service, and the name of its life.
func (h *host) at() (addr, life string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.addr, fmt.Sprintf("%s.%d", h.name, h.life)
}

// restart stops the service, and starts it again after a while; the channel is
// closed then. It does nothing and returns nil when that is under way already.
func (h *host) restart(away time.Duration) <-chan struct{} {
	if !h.busy.CompareAndSwap(false, true) {
		return nil
	}
	started := make(chan struct{})
	h.w.tasks.Go(func() {
		defer close(started)
		defer h.busy.Store(false)
		h.stop()
		if natsconn.Pause(h.w.ctx, away) {
			h.start()
		}
	})
	return started
}

// attempt is one event that a publisher tried to publish.
type attempt struct {
	data         []byte
	typ          string
	began, ended time.Time
	status       int    // of the answer; 0: none
	code         string // of the problem
	id           event.ID
}

// publisher publishes to one stream, one event after the other.
type publisher struct {
	w     *world
	at    place
	queue chan job
	done  chan struct{}
	once  sync.Once
}

type job struct {
	n, size int
	done    chan struct{}
}

func newPublisher(w *world, at place) *publisher {
	p := &publisher{w: w, at: at, queue: make(chan job, 1024), done: make(chan struct{})}
	go p.run()
	return p
}

func (p *publisher) run() {
	defer close(p.done)
	for j := range p.queue {
		for range j.n {
			if p.w.ctx.Err() != nil || !p.publish(j.size) {
				break
			}
		}
		close(j.done)
	}
}

func (p *publisher) end() {
	p.once.Do(func() { close(p.queue) })
	<-p.done
}

func (p *publisher) put(n, size int) job {
	j := job{n, size, make(chan struct{})}
	p.queue <- j
	return j
}

// message makes a message that no other one equals.
func (w *world) message(size int) []byte {
	w.mu.Lock()
	w.number++
	n := w.number
	w.mu.Unlock()
	pad := strings.Repeat("<é&>0123456789abcdef", size/20+1)
	space := []string{"", " ", "\n"}[n%3]
	return fmt.Appendf(nil, `{"jsonrpc":"2.0",%s"method":"m%d","params":{"n":%d,"big":12345678901234567890,"pad":%q}}`, space, n%3, n, pad[:max(size/20*21, 0)])
}

// publish tries once and reports whether the event was stored.
func (p *publisher) publish(size int) bool {
	message := p.w.message(size)
	a := &attempt{data: asStored(message), typ: event.DefaultType, began: time.Now()}
	p.w.mu.Lock()
	p.w.attempts[p.at] = append(p.w.attempts[p.at], a)
	number := p.w.number
	p.w.mu.Unlock()
	headers := http.Header{"Content-Type": {"application/json"}}
	if number%5 == 0 {
		a.typ = "note"
		headers.Set("Event-Type", a.typ)
	}
	status, body, err := p.w.askIngest(http.MethodPost, eventsPath(p.at), message, headers)
	p.w.mu.Lock()
	a.ended = time.Now()
	p.w.mu.Unlock()
	if err != nil {
		if p.w.ctx.Err() == nil {
			p.w.count("publish error")
		}
		return false
	}
	var answer struct{ ID, Code string }
	if err := json.Unmarshal(body, &answer); err != nil {
		p.w.violate("%s: POST answers %d %q", p.at, status, body)
		return false
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	a.status, a.code = status, answer.Code
	p.w.tally[fmt.Sprintf("publish %d %s", status, answer.Code)]++
	if status == http.StatusCreated {
		a.id, err = event.ParseID(answer.ID)
		if err != nil || a.id.Stream != p.at.stream {
			p.w.violations = append(p.w.violations, fmt.Sprintf("%s: POST answers the ID %q: %v", p.at, answer.ID, err))
		}
		return true
	}
	return false
}

// asStored returns a message as ingest stores it: one with line breaks without its white space.
func asStored(message []byte) []byte {
	var b bytes.Buffer
	if !bytes.Contains(message, []byte("\n")) || json.Compact(&b, message) != nil {
		return message
	}
	return b.Bytes()
}

func eventsPath(at place) string {
	path := "/v1/sessions/" + url.PathEscape(at.session)
	if at.stream != "" {
		path += "/streams/" + url.PathEscape(at.stream)
	}
	return path + "/events"
}

// askIngest makes a request to ingest, which may be down.
func (w *world) askIngest(method, path string, body []byte, headers http.Header) (status int, answer []byte, err error) {
	addr, _ := w.ingest.at()
	req, err := http.NewRequestWithContext(w.ctx, method, "http://"+addr+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header = headers
	resp, err := w.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// closing is a close that was requested.
type closing struct {
	ended time.Time // zero until it was answered 204
	last  uint64    // the partition's last sequence then; 0 when it is not known
}

// close closes a stream or session; it repeats until it is done.
func (w *world) close(at place, clearToo bool) {
	w.mu.Lock()
	if c := w.closes[at]; c != nil {
		w.mu.Unlock()
		return
	}
	this := &closing{}
	w.closes[at] = this
	w.mu.Unlock()
	path := strings.TrimSuffix(eventsPath(at), "/events")
	if clearToo {
		path += "?clear=true"
	}
	w.tasks.Go(func() {
		for w.ctx.Err() == nil {
			status, body, err := w.askIngest(http.MethodDelete, path, nil, http.Header{})
			switch {
			case err == nil && status == http.StatusNoContent:
				ended := time.Now()
				state, _ := w.own.Log.Look(w.ctx, w.truth.partition(at.session))
				w.mu.Lock()
				this.ended, this.last = ended, state.Last
				if w.sc.reuses {
					delete(w.closes, at) // there may be another of the name
				}
				w.mu.Unlock()
				return
			case err == nil && status == http.StatusNotFound:
				// The session has never been used.
				w.mu.Lock()
				delete(w.closes, at)
				w.mu.Unlock()
				return
			case err == nil && status != http.StatusServiceUnavailable:
				w.violate("DELETE of %s answers %d %s", at, status, body)
				return
			}
			natsconn.Pause(w.ctx, 20*time.Millisecond)
		}
	})
}

// write begins a task that writes to the log, and may take two seconds.
func (w *world) write(task func(context.Context)) {
	w.writing.Add(1)
	w.tasks.Go(func() {
		defer w.writing.Done()
		ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
		defer cancel()
		task(ctx)
	})
}

// clear clears a stream or session that stays open.
func (w *world) clear(at place) {
	w.write(func(ctx context.Context) {
		rec, err := w.own.Sessions.CopyOrGet(ctx, at.session)
		if err == nil {
			err = w.own.Log.ClearStream(ctx, at.session, rec.Life, at.stream)
		}
		if err != nil {
			w.count("clear failed")
		}
	})
}

// changeMembers gives a session n members, as ingest does for its owner.
func (w *world) changeMembers(name string, n int) {
	w.write(func(ctx context.Context) {
		members := make([]string, n)
		for i := range members {
			members[i] = fmt.Sprint(name, "-", i)
		}
		if _, err := w.own.Sessions.SetMembers(ctx, name, members, func(session.Record) error { return nil }); err != nil {
			w.count("change of members failed")
			return
		}
		w.count("change of members")
	})
}

// checkMembers waits until the index has the members of all sessions in the log.
func (w *world) checkMembers() {
	deadline := time.Now().Add(checkTime)
	for _, name := range sessionNames {
		var o eventlog.Opening
		var rec session.Record
		if !w.wait(deadline, func() bool {
			ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
			defer cancel()
			var err error
			if o, err = w.own.Log.Opening(ctx, name); err != nil {
				return errors.Is(err, eventlog.ErrNotFound) || errors.Is(err, eventlog.ErrMismatch)
			}
			rec, _ = w.own.Sessions.Session(name)
			return rec.Life == o.Life && rec.Changes == o.Changes && slices.Equal(rec.Members, o.Members)
		}) {
			w.violate("the index has the members %q of %s (change %d), and the log %q (change %d)", rec.Members, name, rec.Changes, o.Members, o.Changes)
		}
	}
}

// publishDirectly publishes as a service that publishes to NATS may: right, wrong, and
// after the end.
func (w *world) publishDirectly(at place, how int) {
	w.write(func(ctx context.Context) {
		rec, err := w.own.Sessions.Ensure(ctx, at.session, func() (session.Record, error) {
			return w.own.Sessions.Create(ctx, session.New(at.session, "", nil, time.Now()))
		})
		if err != nil && !errors.Is(err, session.ErrClosed) {
			w.count("direct publish failed")
			return
		}
		e := eventlog.Event{Session: at.session, Life: rec.Life, Stream: at.stream, Data: w.message(30)}
		a := &attempt{data: e.Data, typ: event.DefaultType, began: time.Now(), code: "direct"}
		switch how {
		case 0:
			e.Data = []byte("this is no JSON")
			a = nil
		case 1:
			e.Type = "gap" // one of ours: ignored
		}
		if a != nil {
			w.mu.Lock()
			w.attempts[at] = append(w.attempts[at], a)
			w.mu.Unlock()
		}
		if how == 2 && w.sc.settings.Partitions > 1 { // in the wrong partition
			s := event.Subject{Partition: (w.truth.partition(at.session) + 1) % w.sc.settings.Partitions, Session: at.session, Life: rec.Life, Stream: at.stream}
			_, err = w.own.Conn.RequestWithContext(ctx, s.String(), []byte(`{"jsonrpc":"2.0","method":"stray"}`))
		} else {
			_, err = w.own.Log.Publish(ctx, e)
		}
		if errors.Is(err, eventlog.ErrClosed) {
			w.count("direct publish after the end")
		} else if err != nil && !errors.Is(err, context.Canceled) {
			w.count("direct publish failed")
		}
	})
}
