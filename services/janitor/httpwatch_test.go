package janitor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/inspect"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/scatter/scattertest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// edge plays an edge, until the test or end ends it.
func edge(t *testing.T, srv *natstest.Server, answer func(inspect.Question) inspect.Answer) (end func()) {
	t.Helper()
	nc := srv.Connect()
	return scattertest.Serve(t, func(ctx context.Context) error { return inspect.Serve(ctx, nc, answer) })
}

// seen asks until the answer is as it should be.
func seen[T any](t *testing.T, r *running, path string, ok func(T) bool) (got T) {
	t.Helper()
	waittest.NoError(t, func() error {
		var fresh T
		if status, body := get(t, r.ln.Addr().String(), path, &fresh); status != http.StatusOK || !ok(fresh) {
			return fmt.Errorf("%s: %d %s", path, status, body)
		}
		got = fresh
		return nil
	})
	return got
}

func TestConnections_OfAllEdges(t *testing.T) {
	srv := natstest.StartParallel(t)
	r := begin(t, srv, eventlog.Settings{}, quick())
	a := r.publish(t, "s", "a", 3)
	r.publish(t, "s", "b", 2)
	none := seen(t, r, "/v1/sessions/s/connections", func(l connectionList) bool { return l.Edges.Reachable })
	if none.Edges.Answered != 0 || none.Connections == nil {
		t.Errorf("without edges: %+v", none)
	}
	begun := time.Now().UTC()
	play := func(id string, connections ...inspect.Connection) func(inspect.Question) inspect.Answer {
		return func(q inspect.Question) inspect.Answer {
			switch q.About {
			case inspect.Connections:
				if q.Session != "s" || q.Limit != 2 {
					t.Errorf("asked %+v", q)
				}
				return inspect.Answer{Edge: id, Host: "host-" + id, Clients: len(connections) + 1, Total: len(connections), Connections: connections}
			default:
				n := make([]int, len(q.Sessions))
				for i, name := range q.Sessions {
					if name == "s" {
						n[i] = len(connections)
					}
				}
				return inspect.Answer{Edge: id, Of: n}
			}
		}
	}
	edge(t, srv, play("one", inspect.Connection{Number: 2, Since: begun, Cursor: a[0]}, inspect.Connection{Number: 1, Stream: "a", Since: begun.Add(-time.Hour), Cursor: a[1]}))
	end := edge(t, srv, play("two", inspect.Connection{Number: 1, Stream: "c", Since: begun.Add(-time.Minute)}))
	got := seen(t, r, "/v1/sessions/s/connections?limit=2", func(l connectionList) bool { return l.Edges.Answered == 2 })
	var all []string
	for _, c := range got.Connections {
		all = append(all, fmt.Sprintf("%s/%s %d %s behind %d", c.Edge, c.Host, c.Number, cmp.Or(c.Stream, "*"), c.Behind))
	}
	if text := strings.Join(all, ", "); text != "one/host-one 2 * behind 4, two/host-two 1 c behind 0" || got.Total != 3 || got.Clients != 5 || got.Edges.Silent != 0 {
		t.Errorf("%s of %+v", text, got)
	}
	list := seen(t, r, "/v1/sessions?clients=true", func(l sessionList) bool { return l.Edges != nil && l.Edges.Answered == 2 })
	if n := list.Sessions[0].Clients; n == nil || *n != 3 {
		t.Errorf("%+v", list.Sessions)
	}
	if list := seen(t, r, "/v1/sessions", func(sessionList) bool { return true }); list.Edges != nil || list.Sessions[0].Clients != nil {
		t.Errorf("clients were not asked for: %+v", list)
	}
	end()
	seen(t, r, "/v1/sessions/s/connections?limit=2", func(l connectionList) bool { return l.Edges == edgesInfo{1, 1, true} && l.Total == 2 })
}

func TestTimeline_EventsAndChanges(t *testing.T) {
	srv := natstest.StartParallel(t)
	r := begin(t, srv, eventlog.Settings{}, quick())
	r.publish(t, "s", "a", 2)
	must.Value(r.b.Log.Publish(t.Context(), eventlog.Event{Session: "s", Stream: "b", Type: "<b>", Data: []byte("{}"), Final: true}))(t)
	r.publish(t, "other", "a", 1)
	r.mark(t, event.End, "s", "a")
	last := r.publish(t, "s", "c", 1)[0]
	at := time.Now().UTC()
	for i, id := range []string{"one", "two"} {
		edge(t, srv, func(q inspect.Question) inspect.Answer {
			a := inspect.Answer{Edge: id, Total: 2, Since: at.Add(time.Duration(i) * time.Minute)}
			for n := range 2 { // the newest first
				a.Happenings = append(a.Happenings, inspect.Happening{Time: at.Add(-time.Duration(2*n+i) * time.Second), What: inspect.Connected, Session: q.Session, Stream: "c", Cursor: last})
			}
			return a
		})
	}
	got := seen(t, r, "/v1/sessions/s/timeline", func(l timeline) bool { return l.Edges.Answered == 2 && len(l.Published) == 5 })
	var all []string
	for i, p := range got.Published {
		all = append(all, fmt.Sprint(p.Kind, " ", p.Stream, " ", p.Type, " ", p.Bytes, " ", p.Final))
		if p.Time.Nanosecond() == 0 || i > 0 && p.Sequence >= got.Published[i-1].Sequence {
			t.Errorf("%+v", p)
		}
	}
	want := fmt.Sprintf("event c message %d false, close a  0 false, event b <b> 2 true, event a message %d false, event a message %d false", messageBytes, messageBytes, messageBytes)
	if text := strings.Join(all, ", "); text != want || got.Published[0].Sequence != last {
		t.Errorf("published were %s, want %s", text, want)
	}
	detail := seen(t, r, "/v1/sessions/s", func(d ledger.SessionDetail) bool { return len(d.Streams) == 3 })
	if id := detail.Streams[2].NewestID; got.Published[0].ID != id || got.Published[1].ID != "" {
		t.Errorf("the ID of the newest event is %s: %+v", id, got.Published)
	}
	all = nil
	for _, h := range got.Happenings {
		if all = append(all, h.Edge); h.CursorID != got.Published[0].ID {
			t.Errorf("the cursor is at %s: %+v", got.Published[0].ID, h)
		}
	}
	if text := strings.Join(all, " "); text != "one two one two" || got.Total != 4 || !got.Since.Equal(at.Add(time.Minute)) {
		t.Errorf("%s since %s: %+v", text, got.Since, got.Happenings)
	}
	short := seen(t, r, "/v1/sessions/s/timeline?limit=2", func(l timeline) bool { return l.Edges.Answered == 2 })
	if len(short.Published) != 2 || len(short.Happenings) != 2 || short.Published[0].Sequence != last {
		t.Errorf("%+v", short)
	}
	if empty := seen(t, r, "/v1/sessions/unknown/timeline", func(timeline) bool { return true }); empty.Published == nil || len(empty.Published) != 0 {
		t.Errorf("%+v", empty)
	}

	srv.Stop() // the ledger is still there
	waittest.Until(t, "it is not connected", func() bool { return !r.b.Conn.IsConnected() })
	var away timeline
	if status, body := get(t, r.ln.Addr().String(), "/v1/sessions/s/timeline", &away); status != http.StatusOK || away.Edges.Reachable || len(away.Published) != 5 || away.Published[0].Sequence != last || away.Published[0].Bytes != messageBytes || away.Happenings == nil {
		t.Errorf("without NATS: %d %s", status, body)
	}
	srv.Start()
}

// Between the newest events there may be more markers than a page has room for.
func TestTimeline_LastMarker(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{}, quick())
	r.publish(t, "s", "a", 1)
	for i := range 9 {
		r.mark(t, event.End, "s", fmt.Sprint(i))
	}
	seen(t, r, "/v1/sessions/s/timeline?limit=2", func(l timeline) bool {
		return len(l.Published) == 2 && l.Published[0].Stream == "8" && l.Published[1].Stream == "7"
	})
}

func TestGaps_OfAllEdges(t *testing.T) {
	srv := natstest.StartParallel(t)
	r := begin(t, srv, eventlog.Settings{}, quick())
	if none := seen(t, r, "/v1/gaps", func(gapList) bool { return true }); !none.Since.IsZero() || none.Gaps == nil {
		t.Errorf("without edges: %+v", none)
	}
	sure, at := true, time.Now().UTC()
	for i := range 2 {
		edge(t, srv, func(inspect.Question) inspect.Answer {
			return inspect.Answer{
				Edge: fmt.Sprint(i), Clients: 10, Total: 7, Reasons: map[string]int{"trimmed": 4, fmt.Sprint("r", i): 3}, Since: at.Add(-2 * time.Hour),
				Happenings: []inspect.Happening{{Time: at.Add(-time.Duration(i) * time.Second), What: inspect.Gapped, Session: "s", Reason: "trimmed", Certain: &sure}},
			}
		})
	}
	got := seen(t, r, "/v1/gaps?limit=1", func(l gapList) bool { return l.Edges.Answered == 2 })
	if got.Total != 14 || got.Clients != 20 || got.Reasons["trimmed"] != 8 || got.Reasons["r1"] != 3 || len(got.Gaps) != 1 || got.Gaps[0].Edge != "0" || !*got.Gaps[0].Certain {
		t.Errorf("%+v", got)
	}
	if ago := time.Since(got.Since); ago < inspect.Kept || ago > inspect.Kept+time.Minute {
		t.Errorf("they are all since %s", got.Since)
	}
	for range maxAsking {
		r.edges.asking <- struct{}{}
	}
	if status, body := get(t, r.ln.Addr().String(), "/v1/gaps", nil); status != http.StatusServiceUnavailable {
		t.Errorf("with too many that ask: %d %s", status, body)
	}
}

func TestList_CloseToALimit(t *testing.T) {
	cfg := quick()
	cfg.Interval, cfg.MaxEventsOverride = time.Hour, 1000
	r := begin(t, natstest.Start(t), eventlog.Settings{MaxEventsPerSession: 10, MaxBytesPerSession: 100 * messageBytes, MaxStreamsPerSession: 2, MaxEventsPerStream: 50, MaxAge: time.Hour}, cfg, onlySweeps)
	must.Value(r.b.Sessions.Create(t.Context(), session.New("roomy", "", json.RawMessage(`{"retention":{"maxEvents":100}}`), time.Now())))(t)
	r.publish(t, "far", "a", 7)
	r.publish(t, "near", "a", 8)
	r.publish(t, "roomy", "a", 12)
	r.publish(t, "streams", "a", 1)
	r.publish(t, "streams", "b", 1)
	r.publish(t, "over", "a", 11)
	r.create(t, "shut")
	r.publish(t, "shut", "a", 10)
	r.end(t, "shut", "")
	got := seen(t, r, "/v1/limits", func(l limitList) bool { return l.Acting && l.Total == 3 })
	var all []string
	for _, s := range got.Sessions {
		all = append(all, fmt.Sprintf("%s %s %.2f of %d", s.Session, s.Limit, s.Share, *s.Limits.Events))
	}
	if text := strings.Join(all, ", "); text != "over events 1.10 of 10, streams streams 1.00 of 10, near events 0.80 of 10" {
		t.Error(text)
	}
	if *got.Limits.Events != 10 || *got.StreamEvents != 50 || got.MaxAge != 3600 || got.ClosedGrace != cfg.ClosedGrace.Seconds() || got.Version == "" || got.Stored < 50 || got.Retained != (ledger.Totals{Sessions: 6, Streams: 7, Events: 50, Bytes: 50 * messageBytes}) {
		t.Errorf("%+v", got)
	}
	if got := seen(t, r, "/v1/limits?share=100&limit=1", func(limitList) bool { return true }); got.Total != 2 || len(got.Sessions) != 1 {
		t.Errorf("%+v", got)
	}
	roomy := seen(t, r, "/v1/sessions/roomy", func(ledger.SessionDetail) bool { return true })
	if *roomy.Limits.Events != 100 || *roomy.Room.Events != 88 || roomy.OpenStreams != 1 || *roomy.Limits.Streams != 2 {
		t.Errorf("the room of a session with limits of its own: %+v", roomy)
	}
	list := seen(t, r, "/v1/sessions?contains=oom", func(sessionList) bool { return true })
	if !slices.ContainsFunc(list.Sessions, func(s ledger.SessionInfo) bool { return s.Session == "roomy" }) || len(list.Sessions) != 1 {
		t.Errorf("%+v", list)
	}
}
