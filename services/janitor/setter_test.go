package janitor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/eventlog"
	"rejoin/shared/logset"
	"rejoin/shared/marks"
	"rejoin/shared/natstest"
)

// set changes the log's settings as "rejoin log set" does.
func (r *running) set(t *testing.T, change func(*eventlog.Settings)) {
	t.Helper()
	from := r.b.Log.Settings()
	to := from
	change(&to)
	for p := to.Partitions - 1; p >= 0; p-- {
		passes(t, logset.ErrNobody, func() error { // it does not act yet
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return logset.Ask(ctx, r.b.Conn, logset.Request{Partition: p, From: from, To: to})
		})
	}
}

func perStream(n int64) func(*eventlog.Settings) {
	return func(s *eventlog.Settings) { s.MaxEventsPerStream = n }
}

func TestAnotherLimitIsKnownOfAtOnceAndAfterARestart(t *testing.T) {
	srv := natstest.Start(t)
	settings := eventlog.Settings{Partitions: 1, MaxEventsPerStream: 4}
	r := begin(t, srv, settings, quick())
	quiet := r.publish(t, "s", "quiet", 3)
	full := r.publish(t, "s", "full", 9)
	r.set(t, perStream(6))
	r.exact(t)
	r.wantMark(t, "s", "full", marks.Mark{Maybe: full[4]})
	r.wantMark(t, "s", "quiet", marks.Mark{})
	more := r.publish(t, "s", "full", 1) // five of six: not full, and yet five are gone
	r.wantMark(t, "s", "full", marks.Mark{Maybe: full[4]})
	r.stop()

	r = begin(t, srv, settings, quick())
	r.exact(t)
	r.wantMark(t, "s", "full", marks.Mark{Maybe: full[4]})
	r.wantMark(t, "s", "quiet", marks.Mark{})
	full = append(full, more...)
	full = append(full, r.publish(t, "s", "full", 2)...)
	r.wantMark(t, "s", "full", marks.Mark{Removed: full[5], Reason: marks.Trimmed, Maybe: full[4]})

	r.set(t, perStream(2))
	r.exact(t)
	r.wantMark(t, "s", "full", marks.Mark{Maybe: full[9]})
	r.wantMark(t, "s", "quiet", marks.Mark{Maybe: quiet[0]})
	if err := wantSequences(r.stored(t, "s", ""), slices.Concat(quiet[1:], full[10:])); err != nil {
		t.Error(err)
	}
	if strings.Contains(r.log.String(), "somebody has changed") {
		t.Error("the janitor is surprised by what it did")
	}
}

func TestLimitsOfASessionAndAnAgeNeedNoNewLedger(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 2}, quick())
	all := r.publish(t, "s", "a", 5)
	p := r.partitions[r.b.Log.Partition("s")]
	p.mu.Lock()
	epoch := p.ledger.epoch
	p.mu.Unlock()
	r.set(t, func(s *eventlog.Settings) { s.MaxEventsPerSession = 2 })
	eventually(t, func() error { return wantSequences(r.stored(t, "s", "a"), all[3:]) })
	r.set(t, func(s *eventlog.Settings) { s.MaxAge = 300 * time.Millisecond })
	eventually(t, func() error {
		if m, err := r.ask(t, "s", "a"); err != nil || m != (marks.Mark{Removed: all[4], Reason: marks.Expired}) {
			return fmt.Errorf("%+v %w", m, err)
		}
		return nil
	})
	p.with(func(l *ledger) {
		if l.epoch != epoch {
			t.Error("the ledger began anew")
		}
	})
}

func TestWhatCannotBeSetIsRefused(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{}, quick())
	now := r.b.Log.Settings()
	other := now
	other.MaxAge++
	fixed := now
	fixed.Partitions = 3
	eventually(t, func() error { // the setter is there
		if err := logset.Ask(t.Context(), r.b.Conn, logset.Request{Partition: 2, From: now, To: now}); !errors.Is(err, logset.ErrRefused) {
			return fmt.Errorf("no refusal: %w", err)
		}
		return nil
	})
	for name, test := range map[string]struct {
		req  logset.Request
		says string
	}{
		"no such partition":    {logset.Request{Partition: 2, From: now, To: now}, "there is no partition 2"},
		"settings of before":   {logset.Request{From: other, To: now}, errChanged.Error()},
		"what does not change": {logset.Request{From: now, To: fixed}, "only the limits and replicas of a log can be changed"},
	} {
		if err := logset.Ask(t.Context(), r.b.Conn, test.req); !errors.Is(err, logset.ErrRefused) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	msg, err := r.b.Conn.Request(logset.Subject, []byte("{"), patience)
	if err != nil || !strings.Contains(string(msg.Data), "cannot be read") {
		t.Errorf("nonsense: %v, %v", msg, err)
	}
	r.stop()
	if err := logset.Ask(t.Context(), natstest.Start(t).Connect(), logset.Request{}); !errors.Is(err, logset.ErrNobody) {
		t.Errorf("nobody there: %v", err)
	}
}

// An edge that has seen the smaller limit is not answered out of a ledger that has not.
func TestALimitThatSomebodyElseChangesMakesNoAnswerWrong(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerStream: 4}, quick())
	all := r.publish(t, "s", "a", 4)
	js, err := jetstream.New(r.b.Conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "MCP_0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgsPerSubject = 1
	for k := range cfg.Metadata {
		if !strings.HasPrefix(k, "rejoin.") {
			delete(cfg.Metadata, k)
		}
	}
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	r.wantMark(t, "s", "a", marks.Mark{Maybe: all[2]})
	if !strings.Contains(r.log.String(), "somebody has changed a limit") {
		t.Error("nobody says so")
	}
}

func TestNoLedgerBeginsBeforeTheSweeperHasDeletedWhatTheLastOneDoomed(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1}, quick())
	p := r.partitions[0]
	complete := func(l *ledger) bool { return l.complete }
	p.with(func(*ledger) {
		p.deleting = true
		p.drop()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if p.await(ctx, complete) {
		t.Error("a ledger began")
	}
	p.with(func(*ledger) { p.deleting = false })
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	if !p.await(ctx, complete) {
		t.Error("no ledger begins any more")
	}
}

// Publishers, questions and changes of limits at random moments: what is gone from
// the log before a question is in the answer, and what the answer calls removed is
// not in the log after it.
func TestMarksAreRightWhileLimitsChange(t *testing.T) {
	r := beginAt(t, natstest.StartProcess(t), eventlog.Settings{Partitions: 1, MaxEventsPerStream: 5, MaxEventsPerSession: -1, MaxBytesPerSession: -1, MaxAge: -1}, quick())
	var places []place
	for _, s := range []string{"a", "b"} {
		for st := range 6 {
			places = append(places, place{s, fmt.Sprint(st)})
		}
	}
	var mu sync.Mutex
	published := map[place][]uint64{}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for _, at := range places {
		wg.Go(func() {
			for ctx.Err() == nil {
				for range rand.IntN(12) {
					ack, err := r.b.Log.Publish(t.Context(), eventlog.Event{Session: at.session, Stream: at.stream, Data: []byte(`{"jsonrpc":"2.0","method":"n"}`)})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					published[at] = append(published[at], ack.Sequence)
					mu.Unlock()
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(rand.IntN(200)) * time.Millisecond):
				}
			}
		})
	}
	var changes atomic.Int64
	wg.Go(func() {
		for ctx.Err() == nil {
			r.set(t, perStream([]int64{-1, 1, 2, 3, 5, 8, 13}[rand.IntN(7)]))
			changes.Add(1)
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(rand.IntN(600)) * time.Millisecond):
			}
		}
	})
	answers, certain := 0, 0
	for begun := time.Now(); answers < 100 || certain < 20 || changes.Load() < 10; {
		if time.Since(begun) > 3*patience {
			t.Fatalf("only %d changes, %d answers, %d of them certain", changes.Load(), answers, certain)
		}
		at := places[rand.IntN(len(places))]
		mu.Lock()
		before := slices.Clone(published[at])
		mu.Unlock()
		left := r.stored(t, at.session, at.stream)
		got, err := r.ask(t, at.session, at.stream)
		if err != nil {
			continue
		}
		answers++
		gone := uint64(0)
		for _, seq := range before {
			if !slices.Contains(left, seq) {
				gone = max(gone, seq)
			}
		}
		if max(got.Removed, got.Maybe) < gone {
			t.Errorf("%v: %d was gone, and the mark is %+v", at, gone, got)
		}
		if got.Removed != 0 && slices.Contains(r.stored(t, at.session, at.stream), got.Removed) {
			t.Errorf("%v: %d is there, and the mark is %+v", at, got.Removed, got)
		}
		if got.Removed >= got.Maybe {
			certain++
		}
	}
	stop()
	wg.Wait()
}
