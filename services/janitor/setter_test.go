package janitor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/janitor/lease"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/backend"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/logset"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// set changes the log's settings as "rejoin log set" does.
func (r *running) set(t *testing.T, change func(*eventlog.Settings)) {
	t.Helper()
	// It does not act yet, or is slow.
	waittest.NoError(t, func() error { return r.trySet(t, change) }, logset.ErrNobody, context.DeadlineExceeded)
}

// setWithin is how long a janitor's answer is waited for: one that was killed gives none.
const setWithin = 10 * time.Second

// trySet is set once. An answer that takes longer than setWithin is lost.
func (r *running) trySet(t *testing.T, change func(*eventlog.Settings)) error {
	t.Helper()
	from := r.b.Log.Settings()
	to := from
	change(&to)
	for p := to.Partitions - 1; p >= 0; p-- {
		ctx, cancel := context.WithTimeout(t.Context(), setWithin)
		err := logset.Ask(ctx, r.b.Conn, logset.Request{Partition: p, From: from, To: to})
		if cancel(); err != nil {
			return err
		}
	}
	return nil
}

func perStream(n int64) func(*eventlog.Settings) {
	return func(s *eventlog.Settings) { s.MaxEventsPerStream = n }
}

func TestLimits_ChangeAtNextSweep(t *testing.T) {
	srv := natstest.StartParallel(t)
	settings := eventlog.Settings{Partitions: 1, MaxEventsPerStream: 4}
	cfg := idle()
	r := begin(t, srv, settings, cfg)
	quiet, full := r.publish(t, "s", "quiet", 3), r.publish(t, "s", "full", 9)
	r.sweepNow(t)
	r.wantTrimmed(t, "s", "full", full[4], eventlog.Trimmed)
	restarts := 0
	r.partitions[0].With(func(l *ledger.Ledger) { restarts = l.Restarts })
	for _, step := range []struct {
		change func(*eventlog.Settings)
		quiet  int // how many are removed
		full   int
	}{
		{perStream(6), 0, 5},
		{perStream(3), 0, 6},
		{func(s *eventlog.Settings) { s.MaxEventsPerSession = 2 }, 3, 7},
		{func(s *eventlog.Settings) { s.MaxEventsPerSession, s.MaxEventsPerStream = 9, 1 }, 3, 8},
	} {
		r.set(t, step.change)
		r.sweepNow(t)
		for stream, all := range map[string][]uint64{"quiet": quiet, "full": full} {
			gone, reason := step.quiet, eventlog.Trimmed
			if stream == "full" {
				gone = step.full
			}
			if gone == 0 {
				r.wantTrimmed(t, "s", stream, 0, "")
			} else {
				r.wantTrimmed(t, "s", stream, all[gone-1], reason)
			}
			waittest.NoError(t, func() error { return wantSequences(r.stored(t, "s", stream), all[gone:]) })
		}
	}
	r.partitions[0].With(func(l *ledger.Ledger) {
		if l.Restarts != restarts {
			t.Error("the ledger started again")
		}
	})
	r.stop()
	r = begin(t, srv, settings, cfg)
	r.exact(t)
	r.wantTrimmed(t, "s", "full", full[7], eventlog.Trimmed)
	r.wantCounts(t)
}

// A limit that another janitor has raised holds at once: announced removals cannot be taken back.
func TestLimits_RaisedByAnotherJanitor(t *testing.T) {
	srv := natstest.StartParallel(t)
	r := begin(t, srv, eventlog.Settings{Partitions: 2, MaxEventsPerStream: 40}, idle())
	name := inPartitions(r.b.Log, "s")[1]
	r.publish(t, name, "a", 41) // less than an eighth more
	other := must.Value(backend.Create(t.Context(), backend.Config{NATSURL: srv.URL()}, "other", eventlog.Settings{}, r.env.Log))(t)
	defer other.Close()
	for range 5 { // the log is looked at every two seconds besides
		to := other.Log.Settings()
		to.MaxEventsPerStream++
		must.NoError(t, other.Log.SetLimits(t.Context(), 0, to))
		must.NoError(t, r.sweeper.announce(r.term(t), r.partitions[1], false, map[ledger.Cause]int{}))
		r.wantTrimmed(t, name, "a", 0, "")
	}
}

// Partition 0, which has the limits, has no leader. The others are trimmed by those seen last, and in
// the rest of the sweep it is not asked again.
func TestLimits_NotKnown(t *testing.T) {
	network := newNetwork(t, natstest.StartParallel(t))
	r := beginAt(t, network.url, eventlog.Settings{Partitions: 2, MaxEventsPerStream: 1}, idle(), onlySweeps)
	r.publish(t, inPartitions(r.b.Log, "s")[1], "a", 3)
	term, p, removed := r.leases.Term(1).Ctx, r.partitions[1], map[ledger.Cause]int{}
	network.lose("$JS.API.STREAM.INFO.MCP_0")
	for range 2 {
		must.NoError(t, errors.Join(r.sweeper.announce(term, p, false, removed), r.sweeper.keepFloor(term, p)))
		p.AwaitRequired(term)
	}
	if removed[ledger.StreamEvents] != 2 || !r.sweeper.unanswered {
		t.Errorf("%v are trimmed; partition 0 did not answer: %t", removed, r.sweeper.unanswered)
	}
	network.lose("")
	if r.sweepNow(t); r.sweeper.unanswered {
		t.Error("the next sweep does not ask for the limits")
	}
}

func TestLimits_Invalid(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{}, quick())
	now := r.b.Log.Settings()
	other := now
	other.MaxAge++
	wanted := now
	wanted.MaxAge += 2
	fixed := now
	fixed.Partitions = 3
	waittest.NoError(t, func() error { // the setter is there
		if err := logset.Ask(t.Context(), r.b.Conn, logset.Request{From: other, To: wanted}); !errors.Is(err, logset.ErrRefused) {
			return fmt.Errorf("no refusal: %w", err)
		}
		return nil
	})
	for name, test := range map[string]struct {
		req  logset.Request
		says string
	}{
		"settings of before":   {logset.Request{From: other, To: wanted}, errChanged.Error()},
		"what does not change": {logset.Request{From: now, To: fixed}, "only the limits and replicas of a log can be changed"},
	} {
		if err := logset.Ask(t.Context(), r.b.Conn, test.req); !errors.Is(err, logset.ErrRefused) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for request, says := range map[string]string{"{": "cannot be read", `{"Partition":1}`: "not partition 1"} {
		msg, err := r.b.Conn.Request(logset.Subject(0), []byte(request), waittest.Timeout)
		if err != nil || !strings.Contains(string(msg.Data), says) {
			t.Errorf("%s is answered %v, %v", request, msg, err)
		}
	}
	if err := logset.Ask(t.Context(), r.b.Conn, logset.Request{Partition: 2, From: now, To: now}); !errors.Is(err, logset.ErrNobody) {
		t.Errorf("no such partition: %v", err)
	}
	r.stop()
	if err := logset.Ask(t.Context(), natstest.Start(t).Connect(), logset.Request{}); !errors.Is(err, logset.ErrNobody) {
		t.Errorf("no janitor there: %v", err)
	}
}

// A client of another version may know more settings, or fewer: those that it does not name stay as they are.
func TestLimits_AskerOfAnotherVersion(t *testing.T) {
	r := begin(t, natstest.StartParallel(t), eventlog.Settings{Partitions: 1}, quick())
	from := r.b.Log.Settings()
	to := from
	to.MaxAge = 2 * time.Hour
	of := func(s eventlog.Settings) (members map[string]any) {
		data, err := json.Marshal(s)
		if err == nil {
			err = json.Unmarshal(data, &members)
		}
		must.NoError(t, err)
		return members
	}
	answer := func(from, to map[string]any) (says logset.Reply) {
		waittest.NoError(t, func() error { // the setter is there
			data := must.Value(json.Marshal(map[string]any{"Partition": 0, "From": from, "To": to}))(t)
			msg, err := r.b.Conn.Request(logset.Subject(0), data, waittest.Timeout)
			if err != nil {
				return err
			}
			return json.Unmarshal(msg.Data, &says)
		})
		return says
	}
	later := of(to)
	later["MaxRate"] = 7
	if says := answer(of(from), later); !strings.Contains(says.Error, "MaxRate") {
		t.Errorf("a setting that the janitor does not know: %+v", says)
	}
	if _, err := r.b.Log.Look(t.Context(), 0); err != nil || r.b.Log.Settings() != from {
		t.Errorf("the log has %+v, %v", r.b.Log.Settings(), err)
	}
	was, earlier := of(from), of(to)
	delete(was, "MaxStreamsPerSession")
	delete(earlier, "MaxStreamsPerSession")
	if says := answer(was, earlier); says.Error != "" {
		t.Errorf("a setting that the asker does not know: %+v", says)
	}
	if _, err := r.b.Log.Look(t.Context(), 0); err != nil || r.b.Log.Settings() != to {
		t.Errorf("the log has %+v, %v", r.b.Log.Settings(), err)
	}
}

// A janitor that loses its lease in the middle of a change reports that to all clients, which can repeat the
// request to the next one, whether the change was made or not.
func TestLimits_StepsDownMeanwhile(t *testing.T) {
	srv := natstest.StartParallel(t)
	network := newNetwork(t, srv)
	r := beginAt(t, network.url, eventlog.Settings{Partitions: 1}, idle(), func(s *Service) { s.setter.nc = srv.Connect() })
	const lost = "$JS.API.STREAM.UPDATE"
	asker := srv.Connect()
	changing := must.Value(asker.SubscribeSync(strings.Repeat("x", len(lost)) + ".>"))(t)
	from := r.b.Log.Settings()
	to := from
	to.MaxAge = 2 * time.Hour
	request := logset.Request{From: from, To: to}
	waittest.NoError(t, func() error { // the setter is there
		if err := logset.Ask(t.Context(), asker, logset.Request{}); !errors.Is(err, logset.ErrRefused) {
			return fmt.Errorf("no refusal: %w", err)
		}
		return nil
	})
	network.lose(lost)
	answer, waiting := make(chan error, 1), must.Value(asker.SubscribeSync(nats.NewInbox()))(t)
	go func() { answer <- logset.Ask(t.Context(), asker, request) }()
	must.Value(changing.NextMsg(waittest.Timeout))(t)
	must.NoError(t, asker.PublishRequest(logset.Subject(0), waiting.Subject, event.MustJSON(request)))
	must.NoError(t, asker.Flush())
	must.NoError(t, r.setter.nc.Flush()) // it has arrived
	term := r.term(t)
	r.wall.ahead.Store(int64(time.Hour))
	if err := lease.StillActing(term); !errors.Is(err, lease.ErrNotActing) {
		t.Fatalf("it still acts: %v", err)
	}
	if err := waittest.Receive(t, "an answer", answer); !errors.Is(err, logset.ErrNobody) {
		t.Errorf("the answer is %v", err)
	}
	if says := must.Value(waiting.NextMsg(waittest.Timeout))(t); !bytes.Contains(says.Data, []byte(`"stepped_down":true`)) {
		t.Errorf("who waited is answered %s", says.Data)
	}
}
