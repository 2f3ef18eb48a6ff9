package janitor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rejoin/services/janitor/ask"
	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
	"rejoin/shared/inspect"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// sharing are three janitors of a log of four partitions. The first two hold two each, or the first
// one holds all.
type sharing struct {
	srv  *natstest.Server
	all  []*running
	held atomic.Pointer[[][]int] // by janitor
}

var (
	shares = [][]int{{0, 2}, {1, 3}, {}}
	atOne  = [][]int{{0, 1, 2, 3}, {}, {}}
)

func startSharing(t *testing.T, settings eventlog.Settings, prepare ...func(*Service)) *sharing {
	t.Helper()
	s := &sharing{srv: natstest.Start(t)}
	s.held.Store(&shares)
	settings.Partitions = 4
	for i := range 3 {
		hold := func(janitor *Service) {
			janitor.acting = func() (all []*follow.Partition) {
				for _, p := range (*s.held.Load())[i] {
					all = append(all, janitor.partitions[p])
				}
				return all
			}
			janitor.leases.Elsewhere = func(int) {} // it keeps all ledgers
			for _, k := range janitor.keepings {
				k.want(true)
			}
			// A sweep is of the partitions that its janitor holds.
			janitor.sweeper.do = func(p int, f func(context.Context) error) (did bool, err error) {
				if slices.Contains(shares[i], p) {
					return true, f(t.Context())
				}
				return false, nil
			}
		}
		s.all = append(s.all, beginAt(t, s.srv.URL(), settings, idle(), append(prepare, hold, onlySweeps)...))
	}
	return s
}

// caughtUp waits until all ledgers and registries are as far as the log.
func (s *sharing) caughtUp(t *testing.T, sessions int) {
	t.Helper()
	for p := range 4 {
		state := must.Value(s.all[0].b.Log.Look(t.Context(), p))(t)
		for _, r := range s.all {
			r.followed(t, eventlog.Ack{Partition: p, Sequence: state.Last})
		}
	}
	waittest.NoError(t, func() error {
		records := s.all[0].b.Sessions.Sessions()
		for _, r := range s.all {
			if got := r.b.Sessions.Sessions(); len(got) != sessions || !maps.EqualFunc(byName(got), byName(records), func(a, b session.Record) bool { return reflect.DeepEqual(a, b) }) {
				return fmt.Errorf("a registry has %d sessions of %d", len(got), sessions)
			}
		}
		return nil
	})
}

func byName(records []session.Record) map[string]session.Record {
	all := map[string]session.Record{}
	for _, r := range records {
		all[r.Session] = r
	}
	return all
}

// fill creates sessions of which some have events, some have ended, and some are not in the registry.
// It returns the names.
func (s *sharing) fill(t *testing.T) (names []string) {
	t.Helper()
	r, created := s.all[0], 0
	for i := range 24 {
		name := fmt.Sprint("s", i, "<>")
		names = append(names, name)
		if i%6 > 0 {
			must.Value(r.b.Sessions.Create(t.Context(), session.New(name, "", json.RawMessage(`{"k":"<&>"}`), midday.Add(time.Duration(i%5)*time.Minute))))(t)
			created++
		}
		if i%6 != 1 {
			r.publish(t, name, "a", i%4+1)
		}
		if i%6 == 2 {
			r.end(t, name, "")
		}
	}
	s.caughtUp(t, created)
	return names
}

// ok asks a janitor until it answers.
func (s *sharing) ok(t *testing.T, janitor int, method, path string) (body string) {
	t.Helper()
	waittest.NoError(t, func() error {
		status, got := do(t, method, s.all[janitor].ln.Addr().String(), path, nil)
		if body = got; status != http.StatusOK {
			return fmt.Errorf("%s: %d %s", path, status, got)
		}
		return nil
	})
	return body
}

// same fails the test unless each janitor answers as one that holds all partitions. It returns the
// answer.
func (s *sharing) same(t *testing.T, method, path string) string {
	t.Helper()
	s.held.Store(&atOne)
	want := s.ok(t, 0, method, path)
	s.held.Store(&shares)
	for i := range s.all {
		if got := s.ok(t, i, method, path); got != want {
			t.Errorf("%s of janitor %d:\n%s\nwant\n%s", path, i, got, want)
		}
	}
	return want
}

func TestSharing_SameAnswersAsOneJanitor(t *testing.T) {
	t.Parallel()
	s := startSharing(t, eventlog.Settings{MaxEventsPerSession: 3})
	names := s.fill(t)
	t.Run("list", func(t *testing.T) {
		for _, query := range []string{"", "&sort=bytes", "&sort=events", "&sort=activity", "&state=open", "&state=closed&sort=activity", "&contains=2", "&contains=2&sort=bytes", "&contains=none"} {
			for _, limit := range []int{1, 7, 100} {
				seen, after := []string{}, ""
				for {
					var list sessionList
					body := s.same(t, http.MethodGet, fmt.Sprintf("/v1/sessions?limit=%d%s%s", limit, query, after))
					must.NoError(t, json.Unmarshal([]byte(body), &list))
					for _, one := range list.Sessions {
						seen = append(seen, one.Session)
					}
					if list.Next == "" {
						if slices.Sort(seen); len(slices.Compact(seen)) != list.Total || query == "" && list.Total != len(names) {
							t.Errorf("%q: %d sessions in pages of %d, of %d", query, len(seen), limit, list.Total)
						}
						break
					}
					after = "&after=" + url.QueryEscape(list.Next)
				}
			}
		}
	})
	t.Run("detail", func(t *testing.T) {
		for _, name := range names {
			s.same(t, http.MethodGet, "/v1/sessions/"+url.PathEscape(name))
		}
		for i := range s.all {
			if status, body := get(t, s.all[i].ln.Addr().String(), "/v1/sessions/none", nil); status != http.StatusNotFound {
				t.Errorf("%d %s", status, body)
			}
		}
	})
	t.Run("limits", func(t *testing.T) {
		for _, query := range []string{"", "?share=1", "?share=50&limit=3"} {
			answers := make([]limitList, 4)
			s.held.Store(&atOne)
			for i := range answers {
				must.NoError(t, json.Unmarshal([]byte(s.ok(t, max(i-1, 0), http.MethodGet, "/v1/limits"+query)), &answers[i]))
				s.held.Store(&shares)
			}
			for i, want := range []int{4, 2, 2, 0} {
				if a := &answers[i]; a.Partitions != want || a.Acting != (want > 0) {
					t.Errorf("a janitor of %d partitions says %+v", want, a)
				}
				if answers[i].Partitions, answers[i].Acting = 0, false; !reflect.DeepEqual(answers[i], answers[0]) {
					t.Errorf("%s:\n%+v, want\n%+v", query, answers[i], answers[0])
				}
			}
			if answers[0].Total == 0 || answers[0].Retained.Sessions == 0 {
				t.Errorf("%+v", answers[0])
			}
		}
	})
	t.Run("dry run", func(t *testing.T) {
		if body := s.same(t, http.MethodPost, "/v1/sweep?dry_run=true"); !strings.Contains(body, `"entries":`) {
			t.Error(body)
		}
	})
	t.Run("clients", func(t *testing.T) {
		begun := time.Now().UTC()
		edge(t, s.srv, func(q inspect.Question) inspect.Answer {
			a := inspect.Answer{Edge: "e", Since: begun, Of: make([]int, len(q.Sessions)), Total: len(names)}
			for i, name := range names {
				a.Connections = append(a.Connections, inspect.Connection{Number: uint64(i), Since: begun, Cursor: 1})                       //nolint:gosec // a small number
				a.Happenings = append(a.Happenings, inspect.Happening{Time: begun, What: inspect.Gapped, Session: name, Cursor: uint64(i)}) //nolint:gosec // likewise
			}
			return a
		})
		for _, r := range s.all {
			seen(t, r, "/v1/gaps", func(l gapList) bool { return l.Edges.Answered == 1 })
			r.edges.within = waittest.Timeout // it knows how many answer, and waits for no more
		}
		for _, path := range []string{"/v1/sessions/" + url.PathEscape(names[3]) + "/connections", "/v1/sessions/" + url.PathEscape(names[3]) + "/timeline"} {
			if body := s.same(t, http.MethodGet, path); !strings.Contains(body, "cursorId") || !strings.Contains(body, `"answered":1`) {
				t.Error(path, body)
			}
		}
		var gaps gapList
		must.NoError(t, json.Unmarshal([]byte(s.same(t, http.MethodGet, "/v1/gaps")), &gaps))
		for _, g := range gaps.Gaps {
			if (g.CursorID != "") != (g.Cursor > 0) {
				t.Errorf("%+v", g)
			}
		}
	})
}

// Each janitor sweeps its partitions, and the answer is of all of them.
func TestSharing_SweepOfAllPartitions(t *testing.T) {
	t.Parallel()
	s := startSharing(t, eventlog.Settings{MaxEventsPerSession: 2})
	s.fill(t)
	var dry dryAnswer
	must.NoError(t, json.Unmarshal([]byte(s.same(t, http.MethodPost, "/v1/sweep?dry_run=true")), &dry))
	removed := map[ledger.Cause]int{}
	for i := 2; !maps.Equal(removed, dry.WouldRemove); i-- { // one without partitions first; a sweep may have been cut short
		var one sweepAnswer
		must.NoError(t, json.Unmarshal([]byte(s.ok(t, max(i, 0), http.MethodPost, "/v1/sweep")), &one))
		add(removed, one.Removed)
		if i < -10 {
			t.Fatalf("removed were %v, want %v", removed, dry.WouldRemove)
		}
	}
}

func TestSharing_JanitorsComeAndGo(t *testing.T) {
	t.Parallel()
	s := startSharing(t, eventlog.Settings{})
	names := s.fill(t)
	s.same(t, http.MethodGet, "/v1/sessions")
	// Two hold the same partitions for a moment.
	want := s.ok(t, 0, http.MethodGet, "/v1/sessions?sort=events")
	s.held.Store(&[][]int{{0, 2}, {1, 2, 3}, {0, 1}})
	for i := range s.all {
		for range 3 {
			if got := s.ok(t, i, http.MethodGet, "/v1/sessions?sort=events"); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
	}
	s.held.Store(&shares)
	s.all[1].stop()
	of := func(p int) string {
		i := slices.IndexFunc(names, func(name string) bool { return s.all[0].b.Log.Partition(name) == p })
		return "/v1/sessions/" + url.PathEscape(names[i])
	}
	t.Run("without", func(t *testing.T) {
		for request, want := range map[string]string{
			"GET /v1/sessions": "partitions 1, 3.", "GET /v1/limits": "partitions 1, 3.", "POST /v1/sweep": "partitions 1, 3.",
			"POST /v1/sweep?dry_run=true": "partitions 1, 3.", "GET " + of(1): "partition 1.", "GET " + of(1) + "/timeline": "partition 1.",
			"GET " + of(3) + "/connections": "partition 3.",
		} {
			for _, janitor := range []*running{s.all[0], s.all[2]} {
				t.Run(request, func(t *testing.T) {
					t.Parallel() // each waits until the time for an answer is over
					method, path, _ := strings.Cut(request, " ")
					waittest.NoError(t, func() error {
						if status, body := do(t, method, janitor.ln.Addr().String(), path, nil); status != http.StatusServiceUnavailable || !strings.Contains(body, "No janitor answers for "+want) {
							return fmt.Errorf("%d %s, want %s", status, body, want)
						}
						return nil
					})
				})
			}
		}
	})
	s.all = []*running{s.all[0], s.all[2]}
	for i := range s.all {
		s.ok(t, i, http.MethodGet, of(0))
		s.ok(t, i, http.MethodGet, of(2)+"/timeline")
		s.ok(t, i, http.MethodGet, "/v1/gaps")
	}
	s.held.Store(&[][]int{{0, 2}, {}, {1, 3}})
	for i := range s.all {
		if got := s.ok(t, i, http.MethodGet, "/v1/sessions?sort=events"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A janitor that loses a partition while it answers has no answer for it: its ledger may be empty.
func TestAnswer_PartitionLostMeanwhile(t *testing.T) {
	r := begin(t, natstest.StartParallel(t), eventlog.Settings{Partitions: 1}, idle())
	r.publish(t, "s", "a", 3)
	w := newSweeper(r.cfg, r.b, r.deleter, r.logger)
	s := &Service{cfg: r.cfg, backend: r.b, logger: r.logger, partitions: r.partitions, leases: r.leases, sweeper: w, acting: r.actingFor}
	answered := make(chan ask.Answer, 1)
	go func() { answered <- s.answer(t.Context(), ask.Question{About: ask.Sweep, Partitions: []int{0}}) }()
	request := waittest.Receive(t, "it has looked what it holds", w.asks)
	r.keepings[0].want(false)
	if !r.partitions[0].Await(waittest.Context(t), func(l *ledger.Ledger) bool { return !l.Complete }) {
		t.Fatal("the ledger stays")
	}
	request <- swept{}
	if a := waittest.Receive(t, "an answer", answered); len(a.Partitions) > 0 {
		t.Errorf("it answers for a partition that it has lost: %+v", a)
	}
}
