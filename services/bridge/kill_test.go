package bridge

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rejoin/services/bridge/records"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// bridgeMode is the argument that makes the test's program a bridge; the URLs of NATS and
// of the MCP server follow.
const bridgeMode = "be-a-bridge"

// bridgeProgram is a bridge until it is killed.
func bridgeProgram(natsURL, server string) error {
	env := daemon.NewEnv(nil)
	b, err := backend.Open(context.Background(), backend.Config{NATSURL: natsURL}, "bridge", env.Log, fast()...)
	if err != nil {
		return err
	}
	defer b.Close() // sends the last answers
	service, err := New(testConfig(server), b, env)
	if err != nil {
		return err
	}
	return service.Run(context.Background())
}

// startProgram starts a bridge as a program of its own; kill kills it.
func (s *system) startProgram(t *testing.T, server string) (kill func()) {
	t.Helper()
	_, kill = s.startProcess(t, server)
	return kill
}

// startProcess is startProgram that returns the process, too.
func (s *system) startProcess(t *testing.T, server string) (process *os.Process, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], bridgeMode, s.srv.URL(), server) //nolint:gosec,noctx // this program, killed below
	cmd.Stderr = os.Stderr
	must.NoError(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return cmd.Process, kill
}

// killable is a server whose calls of "count" can be resumed when they have a string as
// their ID.
type killable struct {
	*server
	notes int
	sent  atomic.Int64
}

func newKillable(t *testing.T, notes int) *killable {
	t.Helper()
	k := &killable{server: newServer(t), notes: notes}
	k.handle("count", func(w *writing, r *http.Request, m rpc.Message) {
		w.stream()
		k.count(w, r, string(m.ID), 0)
	})
	k.onGet(func(w *writing, r *http.Request) {
		id, n, _ := strings.Cut(r.Header.Get("Last-Event-ID"), ".")
		from, err := strconv.Atoi(n)
		if err != nil {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.stream()
		k.count(w, r, id, from)
	})
	return k
}

// count sends the messages of a call from a number on.
func (k *killable) count(w *writing, r *http.Request, id string, from int) {
	for n := from; n <= k.notes; n++ {
		select {
		case <-time.After(rand.N(20 * time.Millisecond)):
		case <-r.Context().Done():
			return
		}
		data, event := response(id), ""
		if n < k.notes {
			data = note(n)
		}
		if strings.HasPrefix(id, `"`) {
			event = fmt.Sprintf("%s.%d", id, n+1)
		}
		w.send(event, data)
		k.sent.Add(1)
	}
}

// checked waits for the last event of a stream, and asks for it as an edge does.
func (s *system) checked(t *testing.T, name, stream string) []string {
	t.Helper()
	var all []string
	waittest.Until(t, "the stream "+stream+" is finished", func() (final bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, _ = rpc.Ask{Action: rpc.Check, Session: name, Stream: stream}.Do(ctx, s.b.Conn)
		all, final = s.read(t, name, stream)
		return final
	})
	return all
}

// A bridge that is killed at any moment leaves each call with all of its messages once, or
// with the first of them and an error.
func TestBridge_KilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	const notes, calls, rounds = 150, 6, 3
	s, up := newSystem(t, eventlog.Settings{}), newKillable(t, notes)
	var want []string
	for n := range notes {
		want = append(want, note(n))
	}
	kill := s.startProgram(t, up.URL)
	name := s.ready(t)
	for range rounds {
		waittest.Until(t, "the bridge has the session", func() bool {
			return s.do(t, rpc.Ask{Action: rpc.Check, Session: name}).Status == http.StatusAccepted
		})
		before := up.sent.Load()
		streams, asking := map[string]string{}, sync.WaitGroup{}
		for i := range calls {
			id := strconv.Itoa(i)
			if i%2 == 0 {
				id = strconv.Quote(id)
			}
			stream := newStream(t, id)
			streams[id] = stream
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				call := rpc.Ask{Action: rpc.Post, Session: name, Stream: stream, Data: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"count"}`, id)}
				_, _ = call.Do(ctx, s.b.Conn) // killed, it does not answer
			})
		}
		moment := before + rand.Int64N(notes*calls)
		waittest.Until(t, "the moment has come", func() bool { return up.sent.Load() >= moment })
		kill()
		asking.Wait()
		known := map[string]bool{} // the calls that the next bridge can continue
		for id, stream := range streams {
			entry, err := s.records(t).KV.Get(waittest.Context(t), records.Key(name, stream))
			known[id] = err == nil && strings.Contains(string(entry.Value()), `"id"`)
		}
		kill = s.startProgram(t, up.URL)
		for id, stream := range streams {
			all := s.checked(t, name, stream)
			n := len(all) - 1
			if n > notes || !slices.Equal(all[:n], want[:n]) {
				t.Fatalf("the stream of %s has %v", id, all)
			}
			if all[n] == response(id) && n == notes {
				continue
			}
			if known[id] {
				t.Errorf("the stream of %s, which can be resumed, ends after %d", id, n)
			}
			wantError(t, all, n+1, id)
		}
	}
}
