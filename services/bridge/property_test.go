package bridge

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"rejoin/services/bridge/records"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// script is one stream of the server: messages, of which the last is a response,
// and the messages after which it cuts the connection.
type script struct {
	ids      bool // the stream can be resumed
	every    int  // messages from one event ID to the next
	messages []string
	cuts     map[int]bool
}

// play is a server that sends scripts, however often their connections are cut.
type play struct {
	mu      sync.Mutex
	scripts map[string]*script // by the number of the call; "s" is the standalone stream
}

func (p *play) get(key string) *script {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.scripts[key]
}

// cutAt reports whether the connection is cut after a message, which it is once.
func (p *play) cutAt(s *script, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	cut := s.cuts[n]
	delete(s.cuts, n)
	return cut
}

// send sends the messages after the first n.
func (p *play) send(w *writing, r *http.Request, key string, n int) {
	s := p.get(key)
	w.stream()
	if s.ids && n == 0 {
		w.send(key+".0", "") // primed
	}
	for ; n < len(s.messages); n++ {
		id := ""
		if s.ids && (n+1)%s.every == 0 {
			id = key + "." + strconv.Itoa(n+1)
		}
		if r.Context().Err() != nil {
			return
		}
		w.send(id, s.messages[n])
		if p.cutAt(s, n) {
			_, _ = fmt.Fprint(w, "retry: 1\n\n")
			w.flush()
			panic(http.ErrAbortHandler)
		}
	}
	if key == "s" {
		<-r.Context().Done()
	}
}

func drawScript(rt *rapid.T, key string) *script {
	s := &script{ids: rapid.Bool().Draw(rt, "ids "+key), every: rapid.IntRange(1, 4).Draw(rt, "every "+key), cuts: map[int]bool{}}
	for n := range rapid.IntRange(0, 8).Draw(rt, "notes "+key) {
		s.messages = append(s.messages, fmt.Sprintf(`{"jsonrpc":"2.0","method":"n","params":{"of":%q,"n":%d}}`, key, n))
	}
	for _, n := range rapid.SliceOfN(rapid.IntRange(0, 8), 0, 3).Draw(rt, "cuts "+key) {
		if n < len(s.messages) {
			s.cuts[n] = true
		}
	}
	return s
}

// TestLog_EqualsServerMessages runs random scripts while NATS and the bridge are
// restarted.
func TestLog_EqualsServerMessages(t *testing.T) {
	t.Parallel()
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	eventlogtest.Begin(t, s.b.Log)
	p := &play{}
	up.handle("play", func(w *writing, r *http.Request, m rpc.Message) { p.send(w, r, string(m.ID), 0) })
	up.onGet(func(w *writing, r *http.Request) {
		key, n := "s", 0
		if last := r.Header.Get("Last-Event-ID"); last != "" {
			var number string
			key, number, _ = strings.Cut(last, ".")
			n, _ = strconv.Atoi(number)
		}
		if p.get(key) == nil || n == 0 && p.get(key).ids && key == "s" && r.Header.Get("Last-Event-ID") == "" && len(p.get(key).messages) == 0 {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		p.send(w, r, key, n)
	})
	in := s.start(t, testConfig(up.URL))
	rapid.Check(t, func(rt *rapid.T) {
		calls := rapid.IntRange(1, 4).Draw(rt, "calls")
		scripts := map[string]*script{"s": drawScript(rt, "s")}
		scripts["s"].ids = true
		want := map[string][]string{"s": slices.Clone(scripts["s"].messages)}
		cut := map[string]bool{}
		for i := range calls {
			key := strconv.Itoa(i + 1)
			scripts[key] = drawScript(rt, key)
			cut[key] = len(scripts[key].cuts) > 0
			scripts[key].messages = append(scripts[key].messages, response(key))
			want[key] = slices.Clone(scripts[key].messages)
		}
		p.mu.Lock()
		p.scripts = scripts
		p.mu.Unlock()

		name := s.ready(t)
		streams := map[string]string{"s": rpc.Standalone}
		for i := range calls {
			key := strconv.Itoa(i + 1)
			var a rpc.Answer
			if streams[key], a = s.request(t, name, key, "play"); a.Status != http.StatusAccepted {
				rt.Fatalf("a call was answered %d %s", a.Status, a.Data)
			}
		}
		var written map[string]records.Record // by the bridge that has stopped last; nil without a restart
		for _, trouble := range rapid.SliceOfN(rapid.SampledFrom([]string{"nats", "bridge"}), 0, 2).Draw(rt, "trouble") {
			switch trouble {
			case "nats":
				s.srv.Stop()
				s.srv.Start()
			case "bridge":
				in.stop()
				written = must.Value(s.records(t).Load(waittest.Context(t)))(t)
				in = s.start(t, testConfig(up.URL))
			}
		}
		for key, stream := range streams {
			if key == "s" {
				var all []string
				waittest.Until(t, "all notes are there", func() bool {
					all, _ = s.read(t, name, stream)
					return len(all) >= len(want[key])
				})
				if !slices.Equal(all, want[key]) {
					rt.Fatalf("the standalone stream has %v, want %v", all, want[key])
				}
				continue
			}
			all := s.checked(t, name, stream)
			if slices.Equal(all, want[key]) {
				continue
			}
			n := len(all) - 1
			if m, err := rpc.ParseMessage([]byte(all[n])); err != nil || m.Error == nil || string(m.ID) != key || n >= len(want[key]) || !slices.Equal(all[:n], want[key][:n]) {
				rt.Fatalf("the stream of %s has %v, want %v", key, all, want[key])
			}
			// A stream with IDs is resumed, unless it had sent none yet, or NATS was down when the bridge stopped. One without
			// IDs must have been cut.
			_, known := written[records.Key(name, stream)]
			restarted := written != nil
			if allowed := restarted && (n == 0 || !known) || !scripts[key].ids && (cut[key] || restarted); !allowed {
				rt.Fatalf("the stream of %s ended after %d with %s", key, n, all[n])
			}
		}
		if a := s.do(t, rpc.Ask{Action: rpc.End, Session: name}); a.Status != http.StatusNoContent {
			rt.Fatalf("the end was answered %d", a.Status)
		}
	})
}

// FuzzBody reads bodies that an upstream may send, and expects that all messages are bounded.
func FuzzBody(f *testing.F) {
	f.Add("text/event-stream", "id: 1\ndata: "+note(1)+"\n\ndata: ["+note(2)+"]\n\n")
	f.Add("application/json", "["+note(1)+","+response("1")+"]")
	f.Add("application/json; charset=utf-8", " "+note(1))
	f.Add("text/event-stream", "retry: 5\n\nid\ndata:\n\nevent: x\ndata: y\n\n")
	f.Fuzz(func(t *testing.T, contentType, text string) {
		const most = 100
		b := upstream.NewBody(http.Header{"Content-Type": {contentType}}, strings.NewReader(text), most)
		if b == nil {
			return
		}
		for {
			in, err := b.Next()
			if err != nil {
				break
			}
			for _, data := range in.Messages {
				if len(data) > upstream.MostMessages*most+upstream.BlockOverhead {
					t.Errorf("a message has %d bytes", len(data))
				}
				if m, err := rpc.ParseMessage(data); err == nil {
					_ = m.Param("_meta", "progressToken")
					_ = rpc.IDKey(m.ID)
				}
			}
		}
		_, _ = b.LastID(), b.Retry()
	})
}
