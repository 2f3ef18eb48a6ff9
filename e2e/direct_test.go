package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

// direct runs the example of a service that publishes straight to JetStream.
func (p *proc) direct(session, stream, lines string, args ...string) string {
	p.t.Helper()
	args = append([]string{"-nats=nats://" + p.addrs["--nats-addr"], "-session=" + session, "-stream=" + stream}, args...)
	cmd := exec.CommandContext(p.t.Context(), built(p.t, "rejoin/examples/direct"), args...)
	cmd.Stdin = strings.NewReader(lines)
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// nats connects to the program's NATS server, with the key that there is with access control.
func (p *proc) nats(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	if key, err := nats.NkeyOptionFromSeed(filepath.Join(p.data, "nats.nk")); err == nil {
		opts = append(opts, key)
	}
	nc := must.Value(nats.Connect("nats://"+p.addrs["--nats-addr"], opts...))(t)
	t.Cleanup(nc.Close)
	return nc
}

// place returns the subject of a stream's events.
func place(t testing.TB, nc *nats.Conn, session, stream string) event.Subject {
	t.Helper()
	return event.Subject{Partition: event.Partition(session, partitions), Session: session, Life: lifeOf(t, nc, session), Stream: stream}
}

// lifeOf returns the life that a session's opening names.
func lifeOf(t testing.TB, nc *nats.Conn, session string) string {
	t.Helper()
	js := natstest.JetStream(t, nc, jetstream.WithDefaultTimeout(waittest.Timeout))
	s := event.Subject{Partition: event.Partition(session, partitions), Session: session, Kind: event.Open}
	log := must.Value(js.Stream(t.Context(), fmt.Sprintf("MCP_%d", s.Partition)))(t)
	opening, err := log.GetLastMsgForSubject(t.Context(), s.String())
	if err != nil {
		t.Fatalf("the opening of the session %s: %v", session, err)
	}
	return stringIn(t, string(opening.Data), "life")
}

func TestDirectPublish(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--ack-timeout=9s")
	for i, name := range []string{"plain", "a/b?c=d%", ".*>=2A", strings.Repeat("~", event.MaxNameLen)} {
		key := fmt.Sprintf("run-%d", i)
		path := streamPath(url.PathEscape(name), url.PathEscape("*"))
		p.create(jsonOf(t, map[string]string{"session": name}))
		out := p.direct(name, "*", numbered(1)+"\n"+numbered(2)+"\n", "-type=tick", "-key="+key)
		partition := event.Partition(name, partitions)
		if !regexp.MustCompile(fmt.Sprintf(`^MCP_%d \d+ duplicate=false\nMCP_%d \d+ duplicate=false\n$`, partition, partition)).MatchString(out) {
			t.Errorf("%q: it printed %q", name, out)
		}
		if out := p.direct(name, "*", numbered(1), "-key="+key); !strings.HasSuffix(out, "duplicate=true\n") {
			t.Errorf("%q: repeated, it printed %q", name, out)
		}
		// Ingest takes it for a repetition as well.
		if a := do(t, http.MethodPost, p.api()+path, numbered(2), "Content-Type", jsonType, "Idempotency-Key", key+"-2"); !strings.HasSuffix(a.body, `"duplicate":true}`) {
			t.Errorf("%q: ingest answers %d %s", name, a.status, a.body)
		}
		s := p.subscribe(path, "")
		s.connected()
		for n := 1; n <= 2; n++ {
			if e := s.next("tick"); numberOf(t, e.Data) != n {
				t.Errorf("%q: event %d is %s", name, n, e.Data)
			}
		}
		p.publish(url.PathEscape(name), url.PathEscape("*"), 3, 3)
		s.numbers(3, 3)
	}
}

// A publish that JetStream refuses for now is tried again, and so is one from before the connection was lost.
func TestDirectPublish_Repeats(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--interval=1h") // the limit below stays as it is
	p.create(`{"session":"demo"}`)
	p.direct("demo", "main", numbered(1))
	nc := p.nats(t)
	at := place(t, nc, "demo", "main")
	setFull := func(full bool) {
		t.Helper()
		js := natstest.JetStream(t, nc)
		cfg := must.Value(js.Stream(t.Context(), fmt.Sprint("MCP_", at.Partition)))(t).CachedInfo()
		cfg.Config.MaxMsgs = -1
		if full {
			cfg.Config.MaxMsgs = int64(cfg.State.Msgs) //nolint:gosec // a few
		}
		must.Value(js.UpdateStream(t.Context(), cfg.Config))(t)
	}
	setFull(true)
	tried := must.Value(nc.SubscribeSync(at.String()))(t)
	must.NoError(t, nc.Flush())
	way := newCutter(t, p.addrs["--nats-addr"])
	r := p.example("rejoin/examples/direct", "-nats=nats://"+way.addr())
	waittest.Until(t, "it has connected", func() bool { return way.count("stream_info_response") == 1 })
	way.cutAfter(1)
	r.write(numbered(2) + "\n")
	for range 2 {
		must.Value(tried.NextMsg(waittest.Timeout))(t)
	}
	setFull(false)
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d\n%s", code, r.errors())
	}
}

// entriesOf returns how many entries of a subject the log has.
func (p *proc) entriesOf(t *testing.T, s event.Subject) uint64 {
	t.Helper()
	js := natstest.JetStream(t, p.nats(t))
	stream := must.Value(js.Stream(t.Context(), fmt.Sprint("MCP_", s.Partition)))(t)
	info := must.Value(stream.Info(t.Context(), jetstream.WithSubjectFilter(s.String())))(t)
	return info.State.Subjects[s.String()]
}

// The example refuses a session that does not exist. The fence of each event, and that of the
// birth, let JetStream refuse messages after the end.
func TestDirectPublish_BeforeAndAfterTheSession(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	p.create(`{"session":"shut"}`)
	refused := func(session, stream, why string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), built(t, "rejoin/examples/direct"), "-nats=nats://"+p.addrs["--nats-addr"], "-session="+session, "-stream="+stream) //nolint:gosec // the example
		cmd.Stdin = strings.NewReader(numbered(2))
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), why) {
			t.Errorf("%s/%s: it printed %q, %v", session, stream, out, err)
		}
	}
	refused("unknown", "one", "there is no such session")
	p.direct("shut", "one", numbered(1))
	p.direct("shut", "two", numbered(1))
	p.close("/v1/sessions/shut/streams/one")
	refused("shut", "one", "the stream or session has ended")
	p.direct("shut", "two", numbered(2))
	birth := place(t, p.nats(t), "shut", "two")
	birth.Kind = event.Birth
	if births := p.entriesOf(t, birth); births != 1 {
		t.Errorf("the stream has %d births", births)
	}
	p.close("/v1/sessions/shut")
	refused("shut", "two", "the stream or session has ended")
	refused("shut", "three", "the stream or session has ended")
	for stream, last := range map[string]int{"one": 1, "two": 2} {
		s := p.subscribe(streamPath("shut", stream), "")
		s.connected()
		s.numbers(1, last)
		s.next("close")
	}
}

// The values in the document for other languages are those computed here.
func TestDirectPublish_AsDocumented(t *testing.T) {
	text := must.Value(os.ReadFile("../docs/publishing.md"))(t)
	for _, want := range []string{
		fmt.Sprintf("`demo` is in %d and `a/b` in %d", event.Partition("demo", 16), event.Partition("a/b", 16)),
		"`" + eventlog.MessageID("demo", "f5kq2vznf3hc", "main", "k", 0) + "`",
		"`" + eventlog.HeaderType + "`", "`" + eventlog.HeaderFinal + "`",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("it does not say %s", want)
		}
	}
}

// Events without a life belong to no session. They are shown as long as there is none.
func TestDirectPublish_WithoutALife(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	p.rawNATS(t).publish(stray{subject: fmt.Sprintf("mcp.%d.unopened.=.main", event.Partition("unopened", partitions)), data: numbered(1)})
	s := p.subscribe(streamPath("unopened", "main"), "")
	s.connected()
	s.numbers(1, 1)
	waittest.Until(t, "the janitor shows them", func() bool { return p.retained("unopened", "main") == 1 })
	p.publish("unopened", "main", 2, 2)
	waittest.Until(t, "the edge has heard of the session", func() bool { return slices.Equal(p.storedIn("unopened", "main"), []int{2}) })
	s = p.subscribe(streamPath("unopened", "main"), "")
	s.connected()
	s.numbers(2, 2)
}

// stray is something that a service should not have written into the log.
type stray struct {
	subject, headers, data string // headers as on the wire
}

// strays are the messages that must not be shown, by the reason under which they are
// counted, for a life of a session.
func strays(at event.Subject) map[string][]stray {
	life := "."
	if at.Life == "" {
		life = "=" + life
	} else {
		life = at.Life + life
	}
	mine := fmt.Sprintf("mcp.%d.", at.Partition)
	session := mine + at.Session + "."
	here := session + life
	elsewhere := fmt.Sprintf("mcp.%d.%s.", (at.Partition+1)%partitions, at.Session)
	good := numbered(999)
	all := map[string][]stray{
		"json": {
			{data: ""},
			{data: "oops"},
			{data: "{"},
			{data: good + good},
			{data: "\x00"},
			{data: "\xef\xbb\xbf" + good},
			{data: "data: x\n\nevent: gap\nid: main_0000000_1\ndata: {}\n\n"},
			{data: `{"a":"` + "\n" + `"}`},
			{data: "{\"a\":\"\xff\"}"},
			{data: strings.Repeat("[", 200_000)},
			{headers: "Status: 404\r\n"},
			{headers: "Status: 409\r\nDescription: Consumer Deleted\r\n"}, // which looks like the server's own word
		},
		"subject": {
			{subject: elsewhere + life + "s"},
			{subject: elsewhere + life + "=end"},
			{subject: elsewhere + "=open"},
			{subject: here + "=zz"},
			{subject: here + "=2a"},
			{subject: here + "=61"},
			{subject: here + "="},
			{subject: here + "=2"},
			{subject: here + "s=open"},
			{subject: here + "=end=end"},
			{subject: here + "=close"},
			{subject: here + "=open"},
			{subject: here + "=birth"},
			{subject: here + "=seal.s"},
			{subject: here + "=end.s.s"},
			{subject: here + "=end.=end"},
			{subject: here + "s.s"},
			{subject: here + "=2E=2E"},
			{subject: here + "ü"},
			{subject: here + strings.Repeat("x", event.MaxNameLen+1)},
			{subject: session + "s"}, // as in version 1 of the layout
			{subject: session + "s=close"},
			{subject: session + "LIFE.s"},
			{subject: session + strings.Repeat("l", 33) + ".s"},
			{subject: mine + "=2A." + life + "s"},
			{subject: mine + strings.Repeat("y", 2000) + "." + life + "s"},
			{subject: mine + "\x7f." + life + "s"},
			{subject: mine + "s"},
		},
	}
	for reason, list := range all {
		for i := range list {
			if reason == "json" {
				list[i].subject = here + "s"
			} else {
				list[i].data = good
			}
		}
	}
	return all
}

// odd are headers with which an event is shown nevertheless, as a message.
func odd() []string {
	var all []string
	for _, t := range []string{"connect", "cursor", "gap", "close", "expiring", "open", "error", "message", "a\rb", "\xff", " ", strings.Repeat("t", event.MaxTypeLen+1)} {
		all = append(all, "Rejoin-Type: "+t+"\r\n")
	}
	return append(all,
		"Rejoin-Type: gap\r\nRejoin-Type: tick\r\n",
		"X: "+strings.Repeat("x", 3000)+"\r\n",
		strings.Repeat("X: y\r\n", 400),
		"Nats-Msg-Size: 99999999999999\r\n", "Nats-Msg-Size: -1\r\n", "Nats-Sequence: 7\r\nNats-Subject: mcp.0.x.y\r\nNats-Stream: MCP_0\r\n",
		"Status: 404\r\n", "Description: x\r\n",
		"no colon in this\r\n", ": no name\r\n",
	)
}

// rawNATS writes messages without a client that would mend them.
type rawNATS struct {
	t    *testing.T
	conn net.Conn
}

func (p *proc) rawNATS(t *testing.T) rawNATS {
	t.Helper()
	return rawNATS{t, webtest.Dial(t, p.addrs["--nats-addr"], `CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":1}`+"\r\n")}
}

func (r rawNATS) write(text string) {
	r.t.Helper()
	must.Value(io.WriteString(r.conn, text))(r.t)
}

func (r rawNATS) publish(s stray) {
	r.t.Helper()
	if s.headers == "" {
		r.write(fmt.Sprintf("PUB %s %d\r\n%s\r\n", s.subject, len(s.data), s.data))
		return
	}
	headers := "NATS/1.0\r\n" + s.headers + "\r\n"
	r.write(fmt.Sprintf("HPUB %s %d %d\r\n%s%s\r\n", s.subject, len(headers), len(headers)+len(s.data), headers, s.data))
}

// Whatever a service writes into the log, clients receive the good events in order and no
// others, from the window, from the log, and after a restart.
func TestEdge_InvalidLogEntries(t *testing.T) {
	for name, tt := range map[string]struct {
		flags  []string
		opened bool // the session has an opening, and the events its life
	}{
		"in the window":                {nil, true},
		"in the window, no session":    {nil, false},
		"below the window":             {[]string{"--window-bytes=1024"}, true},
		"below the window, no session": {[]string{"--window-bytes=1024"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProc(t, append(tt.flags, "--partition-linger=-1")...) // entries of all partitions are counted
			at := event.Subject{Partition: event.Partition("odd", partitions), Session: "odd", Stream: "s"}
			if tt.opened {
				p.create(`{"session":"odd"}`)
				at = place(t, p.nats(t), "odd", "s")
			}
			live := p.subscribe(streamPath("odd", "s"), "")
			live.connected()
			raw := p.rawNATS(t)
			good := at.String()
			n, bad := 0, strays(at)
			shown := func(headers string) {
				n++
				raw.publish(stray{good, headers, numbered(n)})
			}
			for _, list := range bad {
				for _, s := range list {
					raw.publish(s)
					shown("")
				}
			}
			for _, headers := range odd() {
				shown(headers)
			}
			// JSON that is no message of JSON-RPC is framed as it is.
			raw.publish(stray{subject: good, data: "\r\n{\r\"a\":\n[1,\r\n2]}\n"})
			n++
			shown("")

			seen := func(s *tap) {
				t.Helper()
				s.numbers(1, n-2)
				if e := s.next("message"); compact(t, string(e.Data)) != `{"a":[1,2]}` {
					t.Errorf("got %q", e.Data)
				}
				s.numbers(n, n)
			}
			seen(live)
			for reason, list := range bad {
				waittest.Until(t, "all are counted as "+reason, func() bool {
					return p.metric(`rejoin_edge_events_skipped_total{reason="`+reason+`"}`) == float64(len(list))
				})
			}
			again := func() {
				t.Helper()
				for _, path := range []string{streamPath("odd", "s"), "/v1/sessions/odd/events?envelope=false"} {
					s := p.subscribe(path, "")
					s.connected()
					seen(s)
					s.cut()
				}
				var page struct {
					Events []json.RawMessage `json:"events"`
				}
				a := do(t, http.MethodGet, p.api()+streamPath("odd", "s")+"?limit=1000", "", "Accept", jsonType)
				if err := json.Unmarshal([]byte(a.body), &page); err != nil || len(page.Events) == 0 {
					t.Errorf("the page is %d %v %.300s", a.status, err, a.body)
				}
			}
			again()
			p.stop()
			p.start()
			again()
			waittest.Until(t, "the janitor counts what is good and what is not", func() bool { return p.retained("odd", "s") >= n })
			p.endWith(t, good, n)
		})
	}
}

// endWith publishes a stream's last event. An event after it is shown nevertheless: the
// log decides, and the publisher was wrong about the end.
func (p *proc) endWith(t *testing.T, subject string, n int) {
	t.Helper()
	nc := p.nats(t)
	s := p.subscribe(streamPath("odd", "s")+"?from=now", "")
	s.connected()
	last := nats.NewMsg(subject)
	last.Header.Set("Rejoin-Final", "1")
	last.Data = []byte(numbered(n + 1))
	must.Value(nc.RequestMsg(last, waittest.Timeout))(t)
	id := s.numbers(n+1, n+1)
	s.next("close")
	must.Value(nc.Request(subject, []byte(numbered(n+2)), waittest.Timeout))(t)
	waittest.Until(t, "what came behind the end is shown", func() bool {
		a := do(t, http.MethodGet, p.api()+streamPath("odd", "s")+"?after="+id, "", "Accept", jsonType)
		return a.status == http.StatusOK && strings.Contains(a.body, numbered(n+2)) && strings.Contains(a.body, `"closed":false`)
	})
}

// compact takes out the white space between tokens and changes nothing else.
func compact(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(text)); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return b.String()
}

// The publisher's id and the subscribers' are the same, from the first event of a
// session on, and can be resumed from.
func TestPublish_AnswersTheIDThatSubscribersSee(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	for i := range 200 {
		session := fmt.Sprintf("fresh-%d", i)
		id := p.publish(session, "s", 1, 1)
		s := p.subscribe(streamPath(session, "s"), "")
		s.connected()
		if got := s.next("message").ID; got != id {
			t.Errorf("%s was published, %s came out", id, got)
		}
		s.cut()
		s = p.subscribe(streamPath(session, "s"), id)
		if !s.connected() {
			t.Errorf("%s cannot be resumed from: %s", id, s.next("gap").Data)
		}
		s.cut()
	}
}
