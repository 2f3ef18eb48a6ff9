package ingest_test

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
)

func TestClosesAndClears(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in := s.start(t, brief(testConfig()))
	steps := []struct {
		path   string
		status int
		writes string
	}{
		{"nobody", 404, ""},
		{"nobody/streams/t", 404, ""},
		{"a?clear=false", 204, "mcp.0.a.=close"},
		{"a", 204, ""},
		{"a/streams/t", 204, ""},
		{"a?clear=true", 204, "mcp.0.a.=clear"},
		{"a?clear=true", 204, ""},
		{"b/streams/%2A", 204, "mcp.0.b.=2A=close"},
		{"b/streams/%2A", 204, ""},
		{"b/streams/t?clear=true", 204, "mcp.0.b.t=close mcp.0.b.t=clear"},
		{"b?clear=true", 204, "mcp.0.b.=close mcp.0.b.=clear"},
	}
	for _, name := range []string{"a", "b"} {
		s.register(t, name)
	}
	for _, step := range steps {
		before := len(s.entries(t))
		a := in.close(t, step.path)
		if a.status != step.status || (a.status == 204) != (len(a.body) == 0) {
			t.Errorf("%s: %d %s", step.path, a.status, a.body)
		}
		if a.status == 404 {
			a.expect(t, 404, "not_found")
		}
		wrote := ""
		for _, e := range s.entries(t)[before:] {
			wrote += " " + e.RawSubject
		}
		if wrote != "" {
			wrote = wrote[1:]
		}
		if wrote != step.writes {
			t.Errorf("%s wrote %q, want %q", step.path, wrote, step.writes)
		}
	}
}

func TestAClosedStreamLeavesItsSessionOpen(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in, other, closer := s.start(t, testConfig()), s.start(t, testConfig()), s.start(t, brief(testConfig()))
	in.post(t, "s", "t", ping("1")).stored(t, false)
	if a := closer.close(t, "s/streams/t"); a.status != http.StatusNoContent {
		t.Fatalf("%d %s", a.status, a.body)
	}
	closer.knows(t, "s")
	closer.post(t, "s", "t", ping("2")).expect(t, http.StatusConflict, "stream_closed")
	for _, i := range []*instance{in, other} {
		i.refuses(t, "s", "t")
		i.post(t, "s", "t", ping("2")).expect(t, http.StatusConflict, "stream_closed")
		i.post(t, "s", "u", ping("2")).stored(t, false)
	}
}

// Once a close has written its marker, no message is stored behind it: not by the
// ingest that closes, and not by another one.
func TestNoMessageIsStoredBehindAMarker(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := testConfig()
	cfg.AckTimeout, cfg.CloseMargin = 400*time.Millisecond, pause // short for a slow machine: a message is tried again
	ingests := []*instance{s.start(t, cfg), s.start(t, cfg)}
	for round := range 6 {
		name := fmt.Sprintf("s%d", round)
		path, stream := name, ""
		if round%2 == 1 {
			path, stream = name+"/streams/1", "1"
		}
		t.Run(path, func(t *testing.T) {
			t.Parallel() // each waits for long
			var mu sync.Mutex
			var ids []string
			var running, closing sync.WaitGroup
			ready := make(chan struct{}, 8)
			ctx := patient(t)
			for i := range 8 {
				running.Go(func() {
					begun := sync.OnceFunc(func() { ready <- struct{}{} })
					defer begun()
					for n := 0; ; {
						a := ingests[i%2].post(t, name, "1", ping(fmt.Sprint(n)))
						if (a.Code == "unavailable" || a.Code == "publish_unknown") && ctx.Err() == nil {
							continue
						}
						if a.status != http.StatusCreated {
							code := map[bool]string{true: "session_closed", false: "stream_closed"}[stream == ""]
							a.expect(t, http.StatusConflict, code)
							return
						}
						mu.Lock()
						ids = append(ids, a.ID)
						mu.Unlock()
						if n++; n > 5 {
							begun()
						}
					}
				})
			}
			for range 8 {
				<-ready
			}
			for i := range 6 {
				closing.Go(func() {
					if a := ingests[i%2].close(t, path+map[bool]string{true: "?clear=true"}[round%3 == 0]); a.status != http.StatusNoContent {
						t.Errorf("%d %s", a.status, a.body)
					}
				})
			}
			running.Wait()
			closing.Wait()

			marker, err := s.b.Log.First(patient(t), event.Subject{Session: name, Stream: stream, Kind: event.Close}, 1)
			if err != nil {
				t.Fatal(err)
			}
			last, err := s.b.Log.Last(patient(t), event.Subject{Session: name, Stream: "1"})
			if err != nil || last > marker {
				t.Fatalf("message %d behind the marker %d, %v", last, marker, err)
			}
			for _, text := range ids {
				id, err := event.ParseID(text)
				if err != nil {
					t.Fatal(err)
				}
				if e, err := s.b.Log.At(patient(t), 0, id.Sequence); err != nil || e.Subject.Session != name || id.Sequence > marker {
					t.Fatalf("%s was acknowledged; there is %+v, %v", text, e, err)
				}
			}
		})
	}
}

// An ingest that was cut off knows nothing of what was closed meanwhile; an event
// that waits for its connection must not slip in behind the marker.
func TestAnIngestThatWasAwayLearnsWhatWasClosed(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	var l natstest.Link
	other := s.start(t, brief(testConfig()))
	away := s.start(t, testConfig(), nats.SetCustomDialer(&l))
	away.post(t, "s", "t", ping("1")).stored(t, false)
	l.Cut()
	if a := other.close(t, "s"); a.status != http.StatusNoContent {
		t.Fatalf("%d %s", a.status, a.body)
	}
	eventually(t, "the cut is noticed", func() bool { return !away.b.Conn.IsConnected() })
	answers := make(chan answer, 20)
	for range cap(answers) {
		go func() { answers <- away.post(t, "s", "t", ping("2")) }()
	}
	eventually(t, "they are under way", func() bool { return away.metric(t, "rejoin_ingest_inflight", "") == float64(cap(answers)) })
	l.Heal()
	for range cap(answers) {
		a := <-answers
		a.expect(t, http.StatusConflict, "session_closed")
	}
	if all := s.entries(t); len(all) != 2 || all[1].Subject.Kind != event.Close {
		t.Errorf("stored: %+v", all)
	}
}

// closeBegun reports whether a session is closing, or is closed already.
func (s *system) closeBegun(name string) bool {
	rec, _ := s.b.Sessions.Session(name)
	return rec.State == session.Closing || rec.State == session.Closed
}

func TestACloseGoesOnWithoutItsClient(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in := s.start(t, brief(testConfig()))
	s.register(t, "s")
	var d net.Dialer
	conn, err := d.DialContext(patient(t), "tcp", in.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("DELETE /v1/sessions/s HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is closing", func() bool { return s.closeBegun("s") })
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is closed", func() bool { rec, _ := s.b.Sessions.Session("s"); return rec.State == session.Closed })
}

func TestAStopFinishesWhatIsUnderWay(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in := s.start(t, brief(testConfig()))
	s.register(t, "s")
	closed := make(chan answer, 1)
	go func() { closed <- in.close(t, "s") }()
	eventually(t, "it is closing", func() bool { return s.closeBegun("s") })
	if err := in.stop(); err != nil {
		t.Error(err)
	}
	if a := <-closed; a.status != http.StatusNoContent {
		t.Errorf("%d %s", a.status, a.body)
	}
	if rec, err := s.b.Sessions.Get(patient(t), "s", ""); err != nil || rec.State != session.Closed {
		t.Errorf("%+v, %v", rec, err)
	}
}

func TestOnlySoManyClosesAtOnce(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := testConfig()
	cfg.AckTimeout, cfg.MaxCloses = pause, 1
	in := s.start(t, cfg)
	for _, name := range []string{"a", "b"} {
		s.register(t, name)
	}
	closed := make(chan answer, 2)
	for range cap(closed) { // two that share one close
		go func() { closed <- in.close(t, "a") }()
	}
	eventually(t, "a is closing", func() bool { rec, _ := s.b.Sessions.Session("a"); return rec.State == session.Closing })
	in.close(t, "b").expect(t, http.StatusServiceUnavailable, "unavailable")
	if rec, _ := s.b.Sessions.Session("b"); rec.State != session.Open {
		t.Errorf("b is %s", rec.State)
	}
	for range cap(closed) {
		if a := <-closed; a.status != http.StatusNoContent {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if a := in.close(t, "b"); a.status != http.StatusNoContent {
		t.Errorf("%d %s", a.status, a.body)
	}
}
