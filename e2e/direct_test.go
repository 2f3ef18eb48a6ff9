package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
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

func TestAServiceMayPublishStraightToJetStream(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--ack-timeout=9s")
	for i, name := range []string{"plain", "a/b?c=d%", ".*>=2A", strings.Repeat("~", event.MaxNameLen)} {
		key := fmt.Sprintf("run-%d", i)
		path := streamPath(url.PathEscape(name), url.PathEscape("*"))
		out := p.direct(name, "*", numbered(1)+"\n"+numbered(2)+"\n", "-type=tick", "-key="+key)
		partition := event.Partition(name, 16)
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

// What the document says of other languages is what is computed here.
func TestTheDocumentOnPublishingIsRight(t *testing.T) {
	text, err := os.ReadFile("../docs/publishing.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("`demo` is in %d and `a=2Fb` in %d", event.Partition("demo", 16), event.Partition("a/b", 16)),
		"`" + eventlog.MessageID("demo", "main", "k", 0) + "`",
		"`" + eventlog.HeaderType + "`", "`" + eventlog.HeaderFinal + "`",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("it does not say %s", want)
		}
	}
}

func TestTheJanitorRegistersASessionThatIngestHasNotSeen(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--interval=50ms")
	p.direct("unseen", "main", numbered(1))
	waitUntil(t, "the session is registered", func() bool {
		a := do(t, http.MethodGet, p.api()+"/v1/sessions/unseen", "")
		return a.status == http.StatusOK && strings.Contains(a.body, `"state":"open","created":"2`)
	})
	p.publish("unseen", "main", 2, 2)
	s := p.subscribe(streamPath("unseen", "main"), "")
	s.connected()
	s.numbers(1, 2)
}

// stray is something that a service should not have written into the log.
type stray struct {
	subject, headers, data string // headers as they go over the wire
}

// strays are what must not be shown, by the reason that is counted, for a session of a
// partition.
func strays(session string) map[string][]stray {
	partition := event.Partition(session, 16)
	here := fmt.Sprintf("mcp.%d.%s.", partition, session)
	elsewhere := fmt.Sprintf("mcp.%d.%s.", (partition+1)%16, session)
	mine := fmt.Sprintf("mcp.%d.", partition)
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
			{subject: elsewhere + "s"},
			{subject: elsewhere + "=close"},
			{subject: here + "=zz"},
			{subject: here + "=2a"},
			{subject: here + "=61"},
			{subject: here + "="},
			{subject: here + "=2"},
			{subject: here + "s=open"},
			{subject: here + "=close=close"},
			{subject: here + "=2E=2E"},
			{subject: here + "ü"},
			{subject: here + strings.Repeat("x", event.MaxNameLen+1)},
			{subject: mine + "=2A.s"},
			{subject: mine + strings.Repeat("y", 2000) + ".s"},
			{subject: fmt.Sprintf("mcp.%d.\x7f.s", partition)},
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
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.addrs["--nats-addr"])
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { _ = conn.Close() })
	r := rawNATS{t, conn}
	r.write(`CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":1}` + "\r\n")
	return r
}

func (r rawNATS) write(text string) {
	r.t.Helper()
	if _, err := io.WriteString(r.conn, text); err != nil {
		r.t.Fatal(err)
	}
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

// Whatever a service writes into the log, clients see the good events in order and
// nothing else, out of the window, out of the log, and after a restart.
func TestNothingThatIsWrittenIntoTheLogDisturbsTheEdge(t *testing.T) {
	for name, flags := range map[string][]string{"in the window": nil, "below the window": {"--window-bytes=1024"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProc(t, flags...)
			live := p.subscribe(streamPath("odd", "s"), "")
			live.connected()
			raw := p.rawNATS(t)
			good := fmt.Sprintf("mcp.%d.odd.s", event.Partition("odd", 16))
			n, bad := 0, strays("odd")
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
			// What is JSON, but no message of JSON-RPC, is framed as it is.
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
				waitUntil(t, "all are counted as "+reason, func() bool {
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
			waitUntil(t, "the janitor counts what is good and what is not", func() bool { return p.retained("odd", "s") >= n })
			p.endWith(t, good, n)
		})
	}
}

// endWith publishes a stream's last event, and one behind it, which nobody sees.
func (p *proc) endWith(t *testing.T, subject string, n int) {
	t.Helper()
	nc, err := nats.Connect("nats://" + p.addrs["--nats-addr"])
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s := p.subscribe(streamPath("odd", "s")+"?from=now", "")
	s.connected()
	last := nats.NewMsg(subject)
	last.Header.Set("Rejoin-Final", "1")
	last.Data = []byte(numbered(n + 1))
	for _, m := range []*nats.Msg{last, {Subject: subject, Data: []byte(numbered(n + 2))}} {
		if _, err := nc.RequestMsg(m, patience); err != nil {
			t.Fatal(err)
		}
	}
	s.numbers(n+1, n+1)
	s.next("close")
	waitUntil(t, "what came behind the end is counted", func() bool { return p.metric(`rejoin_edge_events_skipped_total{reason="closed"}`) == 1 })
}
