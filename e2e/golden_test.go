package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rejoin/shared/event"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

var update = flag.Bool("update", false, "write the golden transcripts instead of comparing them")

// transcript sends a request on a raw socket and returns every byte of the response, up
// to the one that makes enough true, or to the end when enough is nil.
func (p *proc) transcript(path string, enough func(string) bool, headers ...string) string {
	p.t.Helper()
	addr := p.addrs["--edge-addr"]
	request := "GET " + path + " HTTP/1.1\r\nHost: " + addr + "\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
	conn := webtest.Dial(p.t, addr, request)
	defer func() { _ = conn.Close() }()
	var got bytes.Buffer
	in := bufio.NewReader(conn)
	for enough == nil || !enough(got.String()) {
		one, err := in.ReadByte()
		if errors.Is(err, io.EOF) && enough == nil {
			break
		}
		if err != nil {
			p.t.Fatalf("%v after:\n%s", err, got.String())
		}
		got.WriteByte(one)
	}
	return got.String()
}

// arrived waits until an edge has a published event: a 201 follows JetStream's
// acknowledgement, and the edge receives the event a moment later.
func (p *proc) arrived(session, id string) {
	p.t.Helper()
	parsed := must.Value(event.ParseID(id))(p.t)
	waittest.Until(p.t, "the edge has "+id, func() bool {
		a := do(p.t, http.MethodGet, p.api()+"/v1/sessions/"+session+"/events", "", "Accept", "application/json")
		cursor, err := event.ParseID(stringIn(p.t, a.body, "cursor"))
		return err == nil && cursor.Sequence >= parsed.Sequence
	})
}

func (p *proc) publishAndWait(session, stream string, from, to int) (id string) {
	p.t.Helper()
	id = p.publish(session, stream, from, to)
	p.arrived(session, id)
	return id
}

// complete is a response with a length.
func complete(s string) bool {
	head, body, ok := strings.Cut(s, "\r\n\r\n")
	var n int
	if i := strings.Index(head, "Content-Length: "); ok && i >= 0 {
		_, _ = fmt.Sscanf(head[i:], "Content-Length: %d", &n)
		return len(body) >= n
	}
	return ok && !strings.Contains(body, "event:")
}

// blocks waits for that many blocks of an event stream.
func blocks(n int) func(string) bool {
	return func(s string) bool {
		_, body, _ := strings.Cut(s, "\r\n\r\n")
		return strings.Count(body, "\n\n") >= n
	}
}

var (
	tagPattern    = regexp.MustCompile(`_[0-9a-z]{7}_`)
	timePattern   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	lengthPattern = regexp.MustCompile(`Content-Length: \d+`)
	datePattern   = regexp.MustCompile(`Date: [^\r\n]*`)
)

// normal replaces the parts that differ from run to run: tags and times. Line ends become visible.
func normal(s string) string {
	s = tagPattern.ReplaceAllString(s, "_TAG_")
	s = timePattern.ReplaceAllString(s, "TIME")
	s = datePattern.ReplaceAllString(s, "Date: DATE")
	if strings.Contains(s, "TIME") { // which are of different lengths
		s = lengthPattern.ReplaceAllString(s, "Content-Length: LENGTH")
	}
	return strings.ReplaceAll(s, "\r\n", "␍\n")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	got = normal(got)
	if *update {
		must.NoError(t, os.MkdirAll("testdata", 0o755))
		must.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	want := must.Value(os.ReadFile(file))(t)
	if got != string(want) {
		t.Errorf("%s differs\ngot:\n%s\nwant:\n%s", file, got, want)
	}
}

// The transcripts are the responses to clients, to the byte. Each case has a session of
// its own, in a partition of its own, so that sequences do not depend on other cases.
func TestTranscripts_Golden(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--partitions=64", "--lease=1m", "--ack-timeout=9s", "--heartbeat=300ms")
	sse := "Accept: text/event-stream"
	cases := map[string]func(t *testing.T, p *proc, session string) string{
		"first-connect": func(_ *testing.T, p *proc, session string) string {
			p.publishAndWait(session, "main", 1, 2)
			return p.transcript(streamPath(session, "main"), blocks(4), sse) // with the first cursor
		},
		"first-connect-nobody-there": func(_ *testing.T, p *proc, session string) string {
			return p.transcript(streamPath(session, "main"), blocks(2), sse)
		},
		"from-now": func(_ *testing.T, p *proc, session string) string {
			p.publishAndWait(session, "main", 1, 2)
			return p.transcript(streamPath(session, "main")+"?from=now", blocks(2), sse)
		},
		"resume": func(_ *testing.T, p *proc, session string) string {
			id := p.publishAndWait(session, "main", 1, 2)
			p.publishAndWait(session, "main", 3, 4)
			return p.transcript(streamPath(session, "main"), blocks(4), sse, "Last-Event-ID: "+id)
		},
		"resume-with-after": func(_ *testing.T, p *proc, session string) string {
			id := p.publishAndWait(session, "main", 1, 2)
			p.publishAndWait(session, "main", 3, 3)
			return p.transcript(streamPath(session, "main")+"?after="+id, blocks(3))
		},
		"event-type-and-line-breaks": func(_ *testing.T, p *proc, session string) string {
			p.arrived(session, p.store(streamPath(session, "main"), "{\"jsonrpc\":\"2.0\",\r\n \"method\":\n\t\"m\"}", "Event-Type", "progress"))
			return p.transcript(streamPath(session, "main"), blocks(3), sse)
		},
		"gap-unknown": func(_ *testing.T, p *proc, session string) string {
			p.publishAndWait(session, "main", 1, 2)
			return p.transcript(streamPath(session, "main"), blocks(5), sse, "Last-Event-ID: main_0000000_1")
		},
		"gap-unknown-as-410": func(_ *testing.T, p *proc, session string) string {
			p.publishAndWait(session, "main", 1, 2)
			return p.transcript(streamPath(session, "main")+"?on_gap=error", complete, sse, "Last-Event-ID: main_0000000_1")
		},
		"gap-unknown-in-a-page": func(_ *testing.T, p *proc, session string) string {
			p.publishAndWait(session, "main", 1, 1)
			return p.transcript(streamPath(session, "main")+"?after=main_0000000_1", complete, "Accept: application/json")
		},
		"close": func(t *testing.T, p *proc, session string) string {
			p.publishAndWait(session, "main", 1, 1)
			closed := make(chan answer, 1)
			go func() {
				a, _ := try(http.MethodDelete, p.api()+"/v1/sessions/"+session+"/streams/main", "")
				closed <- a
			}()
			got := p.transcript(streamPath(session, "main"), nil, sse)
			(<-closed).got(t, http.StatusNoContent)
			return withoutCursors(got)
		},
		"closed-and-delivered": func(t *testing.T, p *proc, session string) string {
			id := p.publishAndWait(session, "main", 1, 1)
			do(t, http.MethodDelete, p.api()+"/v1/sessions/"+session, "").got(t, http.StatusNoContent)
			waittest.Until(t, "the edge knows of the close", func() bool {
				return strings.HasSuffix(do(t, http.MethodGet, p.api()+streamPath(session, "main"), "", "Accept", "application/json").body, `"closed":true}`)
			})
			return p.transcript(streamPath(session, "main"), complete, sse, "Last-Event-ID: "+id)
		},
		"session-flow": func(_ *testing.T, p *proc, session string) string {
			p.publishAndWait(session, "a", 1, 1)
			p.publishAndWait(session, "b", 1, 1)
			p.publishAndWait(session, "a", 2, 2)
			return p.transcript("/v1/sessions/"+session+"/events", blocks(4), sse)
		},
		"session-flow-without-envelope": func(_ *testing.T, p *proc, session string) string {
			p.publishAndWait(session, "a", 1, 1)
			p.publishAndWait(session, "b", 1, 1)
			return p.transcript("/v1/sessions/"+session+"/events?envelope=false", blocks(3), sse)
		},
		"stream-with-envelope": func(_ *testing.T, p *proc, session string) string {
			p.publishAndWait(session, "a", 1, 1)
			return p.transcript(streamPath(session, "a")+"?envelope=true", blocks(2), sse)
		},
		"page": func(_ *testing.T, p *proc, session string) string {
			p.publishAndWait(session, "main", 1, 3)
			return p.transcript(streamPath(session, "main")+"?limit=2", complete, "Accept: application/json")
		},
		"page-of-a-session": func(_ *testing.T, p *proc, session string) string {
			p.publishAndWait(session, "a", 1, 1)
			p.publishAndWait(session, "b", 1, 1)
			return p.transcript("/v1/sessions/"+session+"/events", complete, "Accept: application/json")
		},
		"page-with-nothing": func(_ *testing.T, p *proc, session string) string {
			id := p.publishAndWait(session, "main", 1, 1)
			return p.transcript(streamPath(session, "main")+"?after="+id, complete, "Accept: application/json")
		},
	}
	sessions := apart(t, 64)
	for name, run := range cases {
		session := sessions()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, name, strings.ReplaceAll(run(t, p.in(t), session), session, "SESSION"))
		})
	}
}

// apart returns a function that returns names of sessions, each in a partition of
// its own.
func apart(t *testing.T, partitions int) func() string {
	used, n := map[int]bool{}, 0
	return func() string {
		for ; n < 10_000; n++ {
			name := fmt.Sprintf("session-%04d", n)
			if p := event.Partition(name, partitions); !used[p] {
				used[p] = true
				return name
			}
		}
		t.Fatal("there are more sessions than partitions")
		return ""
	}
}

// withoutCursors leaves out the heartbeats, of which any number may come.
func withoutCursors(s string) string {
	return regexp.MustCompile(`event: cursor\nid: [^\n]*\ndata: \{\}\n\n`).ReplaceAllString(s, "")
}
