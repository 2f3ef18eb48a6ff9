package janitor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rejoin/services/janitor/ask"
	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

func get(t *testing.T, addr, path string, into any) (status int, body string) {
	t.Helper()
	return do(t, http.MethodGet, addr, path, into)
}

func do(t *testing.T, method, addr, path string, into any) (status int, body string) {
	t.Helper()
	a := webtest.Ask(t, method, "http://"+addr+path, "")
	if into != nil {
		if err := json.Unmarshal([]byte(a.Text), into); err != nil {
			t.Fatalf("%s: %v", a.Text, err)
		}
	}
	return a.Status, a.Text
}

func TestHTTP_NewSession(t *testing.T) {
	srv := natstest.Start(t)
	r := begin(t, srv, eventlog.Settings{}, quick())
	others := must.Value(session.OpenRegistry(t.Context(), r.b.Log, slog.New(slog.DiscardHandler)))(t)
	defer others.Close()
	for i := range 100 { // the janitor's copy follows within a millisecond or so
		name := fmt.Sprint("s", i)
		must.Value(others.Create(t.Context(), session.New(name, "", nil, midday)))(t)
		if status, body := get(t, r.ln.Addr().String(), "/v1/sessions/"+name, nil); status != http.StatusOK {
			t.Fatalf("%s is %d %s", name, status, body)
		}
	}
}

func TestHTTP(t *testing.T) {
	cfg := quick()
	r := begin(t, natstest.Start(t), eventlog.Settings{}, cfg)
	must.Value(r.b.Sessions.Create(t.Context(), session.New("empty", "someone", json.RawMessage(`{"k":1}`), midday)))(t)
	for _, name := range []string{"log/1", "log2"} {
		r.create(t, name)
		a := r.publish(t, name, "a", 2)
		r.publish(t, name, "b", 1)
		if name == "log/1" {
			waittest.NoError(t, func() error {
				var d ledger.SessionDetail
				if status, body := get(t, r.ln.Addr().String(), "/v1/sessions/log%2F1", &d); status != http.StatusOK {
					return fmt.Errorf("%d %s", status, body)
				}
				if len(d.Streams) != 2 || d.Streams[0].OldestID != r.idOf(t, name, "a", a[0]) || d.Streams[0].NewestID != r.idOf(t, name, "a", a[1]) || d.Events != 3 || d.Bytes != 3*messageBytes || d.Oldest.IsZero() || d.Newest.IsZero() || d.Activity.Before(d.Newest) {
					return fmt.Errorf("%+v", d)
				}
				return nil
			})
		}
	}
	r.end(t, "log2", "a")
	r.end(t, "log2", "")
	for _, test := range []struct {
		path   string
		status int
		want   string // a part of the body
		names  string // the sessions of the list
		next   string
	}{
		{"/v1/sessions", 200, `"owner":"someone"`, "empty log/1 log2", ""},
		{"/v1/sessions?limit=2", 200, "", "empty log/1", "log/1"},
		{"/v1/sessions?limit=2&after=log/1", 200, "", "log2", ""},
		{"/v1/sessions?limit=1&after=f", 200, "", "log/1", "log/1"},
		{"/v1/sessions?state=closed", 200, "", "log2", ""},
		{"/v1/sessions?state=open&limit=2", 200, "", "empty log/1", ""},
		{"/v1/sessions?limit=0", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?limit=1001", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?limit=x", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?after=*", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?state=dead", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?sort=bytes", 200, "", "log/1 log2 empty", ""},
		{"/v1/sessions?sort=events&state=open", 200, "", "log/1 empty", ""},
		{"/v1/sessions?sort=activity&limit=2", 200, "", "log2 log/1", ask.List{Order: ask.ByActivity}.Next(ask.Row{Key: activity(t, r, "log/1"), Name: "log/1"})},
		{"/v1/sessions?sort=bytes&after=" + ask.List{Order: ask.ByBytes}.Next(ask.Row{Key: 3 * messageBytes, Name: "log/1"}), 200, "", "log2 empty", ""},
		{"/v1/sessions?sort=name", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?sort=", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?sort=bytes&sort=events", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?sort=bytes&after=log2", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?sort=bytes&after=" + ask.List{Order: ask.ByEvents}.Next(ask.Row{Key: 1, Name: "log2"}), 400, "invalid_parameter", "", ""},
		{"/v1/sessions?sort=bytes&after=" + ask.List{Order: ask.ByBytes}.Next(ask.Row{Key: 1, Name: "*"}), 400, "invalid_parameter", "", ""},
		{"/v1/sessions?sort=bytes&after=Ynl0ZXM", 400, "invalid_parameter", "", ""},
		{"/v1/sessions/empty", 200, `"streams":[]`, "", ""},
		{"/v1/sessions/empty", 200, `"metadata":{"k":1}`, "", ""},
		{"/v1/sessions/log2", 200, `"closed":true`, "", ""},
		{"/v1/sessions/unknown", 404, "not_found", "", ""},
		{"/v1/sessions/s/timeline/more", 404, "not_found", "", ""},
		{"/v1/sessions/s/timeline?limit=0", 400, "invalid_parameter", "", ""},
		{"/v1/sessions/s/connections?limit=501", 400, "invalid_parameter", "", ""},
		{"/v1/sessions/*/connections", 400, "invalid_name", "", ""},
		{"/v1/gaps?limit=x", 400, "invalid_parameter", "", ""},
		{"/v1/limits?share=0", 400, "invalid_parameter", "", ""},
		{"/v1/limits?limit=1001", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?contains=", 400, "invalid_parameter", "", ""},
		{"/v1/sessions?contains=" + strings.Repeat("x", 129), 400, "invalid_parameter", "", ""},
		{"/v1/sessions?clients=1", 400, "invalid_parameter", "", ""},
		{"/v1/sessions/*", 400, "invalid_name", "", ""},
		{"/v1/sessions/" + strings.Repeat("x", event.MaxNameLen+1), 400, "invalid_name", "", ""},
	} {
		t.Run(test.path, func(t *testing.T) {
			var list sessionList
			status, body := get(t, r.ln.Addr().String(), test.path, &list)
			if status != test.status || !strings.Contains(body, test.want) {
				t.Errorf("%d %s, want %d with %s", status, body, test.status, test.want)
			}
			var names []string
			for _, s := range list.Sessions {
				names = append(names, s.Session)
			}
			if got := strings.Join(names, " "); got != test.names || list.Next != test.next {
				t.Errorf("the list is %q and continues after %q, want %q and %q", got, list.Next, test.names, test.next)
			}
		})
	}
}

// A publisher that writes without an opening has no session in the registry.
func TestHTTP_SessionWithoutARecord(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{}, quick())
	all := r.publish(t, "s", "a", 2)
	var list sessionList
	if status, body := get(t, r.ln.Addr().String(), "/v1/sessions?state=open", &list); status != http.StatusOK || len(list.Sessions) != 1 || list.Sessions[0].Session != "s" || list.Sessions[0].Events != 2 {
		t.Errorf("%d %s", status, body)
	}
	var d ledger.SessionDetail
	if status, body := get(t, r.ln.Addr().String(), "/v1/sessions/s", &d); status != http.StatusOK || d.State != session.Open || !d.Created.IsZero() || d.OpenStreams != 1 || d.Streams[0].OldestID != r.idOf(t, "s", "a", all[0]) {
		t.Errorf("%d %s", status, body)
	}
}

// The last event of a session counts after it is deleted.
func TestHTTP_ActivityAfterDeletion(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{}, quick())
	for i, name := range []string{"cleared", "later"} {
		must.Value(r.b.Sessions.Create(t.Context(), session.New(name, "", nil, midday.Add(time.Duration(i)*time.Second))))(t)
	}
	r.publish(t, "cleared", "a", 1)
	r.mark(t, event.Clear, "cleared", "")
	seen(t, r, "/v1/sessions/cleared", func(d ledger.SessionDetail) bool { return d.Events == 0 && d.Activity.After(midday) })
	seen(t, r, "/v1/sessions/later", func(ledger.SessionDetail) bool { return true })
	list := seen(t, r, "/v1/sessions?sort=activity", func(l sessionList) bool { return l.Total == 2 })
	if list.Sessions[0].Session != "cleared" {
		t.Errorf("%s, active at %s, comes before %s, active at %s", list.Sessions[0].Session, list.Sessions[0].Activity, list.Sessions[1].Session, list.Sessions[1].Activity)
	}
}

// activity returns when a session was last active, in microseconds.
func activity(t *testing.T, r *running, name string) int64 {
	t.Helper()
	var d ledger.SessionDetail
	if status, body := get(t, r.ln.Addr().String(), "/v1/sessions/"+url.PathEscape(name), &d); status != http.StatusOK {
		t.Fatal(status, body)
	}
	return d.Activity.UnixMicro()
}

// idOf returns the event ID of a sequence as an edge gives it out.
func (r *running) idOf(t *testing.T, name, stream string, seq uint64) string {
	t.Helper()
	state := must.Value(r.b.Log.Look(t.Context(), r.b.Log.Partition(name)))(t)
	at := event.TagParts{Origin: state.Origin, Generation: state.Generation().ID, Session: name, Life: r.life(name), Stream: stream}
	return event.ID{Stream: stream, Tag: at.Tag(), Sequence: seq}.String()
}

func TestHTTP_NextTrim(t *testing.T) {
	cfg := quick()
	cfg.Interval = time.Hour
	r := begin(t, natstest.Start(t), eventlog.Settings{MaxEventsPerSession: 3, MaxEventsPerStream: 10, MaxAge: 30 * time.Minute}, cfg, onlySweeps)
	r.create(t, "s")
	a, b := r.publish(t, "s", "a", 4), r.publish(t, "s", "b", 1)
	look := func() (d ledger.SessionDetail) {
		t.Helper()
		if status, body := get(t, r.ln.Addr().String(), "/v1/sessions/s", &d); status != http.StatusOK {
			t.Fatal(status, body)
		}
		return d
	}
	d := look()
	if *d.Room.Events != -2 || *d.Streams[0].Room.Events != 6 || *d.Room.Bytes != 32<<20-5*messageBytes {
		t.Errorf("the room is %d events, %d in the stream, %d bytes", *d.Room.Events, *d.Streams[0].Room.Events, *d.Room.Bytes)
	}
	want := []ledger.RemovalInfo{
		{Cause: ledger.SessionEvents, Stream: "a", Entries: 2, UpTo: r.idOf(t, "s", "a", a[1])},
		{Cause: ledger.Expired, Stream: "a", Entries: 1, UpTo: r.idOf(t, "s", "a", a[0]), At: d.Oldest.Add(30 * time.Minute)},
	}
	if !reflect.DeepEqual(d.Upcoming, want) || !d.Streams[1].Expires.Equal(d.Streams[1].Oldest.Add(30*time.Minute)) {
		t.Errorf("next is\n%+v, want\n%+v", d.Upcoming, want)
	}
	r.sweepNow(t)
	r.end(t, "s", "")
	d = look()
	want = []ledger.RemovalInfo{
		{Cause: ledger.Expired, Stream: "a", Entries: 1, UpTo: r.idOf(t, "s", "a", a[2]), At: d.Oldest.Add(30 * time.Minute)},
		{Cause: ledger.Closed, Entries: 3, At: d.Ended.Add(cfg.ClosedGrace)},
	}
	if !reflect.DeepEqual(d.Upcoming, want) {
		t.Errorf("next is\n%+v, want\n%+v", d.Upcoming, want)
	}
	if d.Streams[1].NewestID != r.idOf(t, "s", "b", b[0]) || *d.Room.Events != 0 {
		t.Errorf("%+v", d)
	}
}

func TestSweep_OnRequest(t *testing.T) {
	cfg := quick()
	cfg.Interval, cfg.ClosedGrace, cfg.SyncInterval = time.Hour, 0, time.Hour
	r := begin(t, natstest.Start(t), eventlog.Settings{MaxEventsPerSession: 3}, cfg, onlySweeps)
	r.create(t, "closed")
	r.publish(t, "closed", "x", 2)
	r.end(t, "closed", "")
	a, b := r.publish(t, "s", "a", 5), r.publish(t, "s", "b", 3)
	for range 2 { // a dry run changes nothing
		var got dryAnswer
		status, body := do(t, http.MethodPost, r.ln.Addr().String(), "/v1/sweep?dry_run=true", &got)
		want := dryAnswer{
			WouldRemove: map[ledger.Cause]int{ledger.SessionEvents: 5, ledger.Closed: 2},
			Removals: []ledger.RemovalInfo{
				{Cause: ledger.SessionEvents, Session: "s", Stream: "a", Entries: 5, UpTo: r.idOf(t, "s", "a", a[4])},
				{Cause: ledger.Closed, Session: "closed", Stream: "x", Entries: 2},
			},
			Left: map[eventlog.Reason]int{},
		}
		want.Removals[1].UpTo = got.Removals[min(1, len(got.Removals)-1)].UpTo
		if status != http.StatusOK || !reflect.DeepEqual(got, want) {
			t.Fatalf("%d %s, want %+v", status, body, want)
		}
		must.NoError(t, wantSequences(r.stored(t, "s", ""), slices.Concat(a, b)))
	}
	var got sweepAnswer
	status, body := do(t, http.MethodPost, r.ln.Addr().String(), "/v1/sweep", &got)
	want := sweepAnswer{Removed: map[ledger.Cause]int{ledger.SessionEvents: 5, ledger.Closed: 2}, Left: map[eventlog.Reason]int{eventlog.Trimmed: 7}, Seconds: got.Seconds}
	if status != http.StatusOK || !reflect.DeepEqual(got, want) || got.Seconds <= 0 {
		t.Fatalf("%d %s, want %+v", status, body, want)
	}
	r.wantTrimmed(t, "s", "a", a[4], eventlog.Trimmed)
	r.wantTrimmed(t, "s", "b", 0, "")
	must.NoError(t, wantSequences(r.stored(t, "s", ""), slices.Concat(a, b))) // it is not on disk for long enough
	for path, want := range map[string]int{
		"POST /v1/sweep?dry_run=1": 400, "POST /v1/sweep?dry_run=": 400, "POST /v1/sweep?dry_run=true&dry_run=true": 400,
		"GET /v1/sweep": 405, "DELETE /v1/sweep?dry_run=true": 405, "POST /v1/sweep/now": 404,
	} {
		method, path, _ := strings.Cut(path, " ")
		if status, body := do(t, method, r.ln.Addr().String(), path, nil); status != want {
			t.Errorf("%s %s: %d %s, want %d", method, path, status, body, want)
		}
	}
}

// One at a time: a request while there is another one, or none at all, gets 503.
func TestSweep_RequestTimesOut(t *testing.T) {
	w := &sweeper{asks: make(chan sweepRequest)}
	if got := w.sweepNow(time.Millisecond); !errors.Is(got.err, errNoSweep) {
		t.Error(got)
	}
}

func TestSweep_SharedByRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &sweeper{asks: make(chan sweepRequest)}
		var answers sync.WaitGroup
		for range 100 {
			answers.Go(func() {
				if got := w.sweepNow(time.Hour); got.took != time.Second {
					t.Error(got)
				}
			})
		}
		synctest.Wait()
		for _, a := range w.others() {
			a <- swept{took: time.Second}
		}
		answers.Wait()
	})
}

func TestDryRun_LargestRemovals(t *testing.T) {
	f := ledger.Firsts[ledger.RemovalInfo]{N: 3, Compare: compareRemovals}
	for i := range 100 {
		f.Add(ledger.RemovalInfo{Session: fmt.Sprint(i), Entries: i * 37 % 101})
	}
	all, more := f.All()
	if len(all) != 3 || !more || all[0].Entries != 100 || all[1].Entries != 99 || all[2].Entries != 98 {
		t.Errorf("%+v, %t", all, more)
	}
}

func TestReady_WaitsForLedger(t *testing.T) {
	srv := natstest.Start(t)
	env := daemon.NewEnv(nil)
	b := must.Value(backend.Create(t.Context(), backend.Config{NATSURL: srv.URL()}, "janitor", eventlog.Settings{Partitions: 1}, env.Log))(t)
	defer b.Close()
	s := must.Value(New(quick(), b, env))(t)
	defer func() { _ = s.ln.Close() }()
	refused := func(want string) {
		t.Helper()
		var all sync.WaitGroup // each waits for a while
		for _, request := range []string{"GET /v1/sessions", "GET /v1/sessions/s", "GET /v1/limits", "POST /v1/sweep", "POST /v1/sweep?dry_run=true"} {
			all.Go(func() {
				method, path, _ := strings.Cut(request, " ")
				req := httptest.NewRequestWithContext(t.Context(), method, path, nil)
				req.Host = "localhost"
				resp, err := s.app.Test(req, -1)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(body), want) {
					t.Errorf("%s answers %d %s, %v", request, resp.StatusCode, body, err)
				}
			})
		}
		all.Wait()
	}
	refused("No janitor answers for partition 0.")
	s.acting = func() []*follow.Partition { return s.partitions }
	refused("The janitor has not read the whole log yet: partition 0.")
	if r := env.Health.Readiness(); r.Ready || r.Failing[0].Check != "ledger" {
		t.Errorf("the readiness is %+v", r)
	}
}
