package session

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natsconn"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// busy is a bucket whose leader is not done yet with an earlier write of the key.
type busy struct {
	jetstream.KeyValue
	left    int    // how many writes it refuses
	refused func() // after each
}

func (b *busy) refuse() error {
	if b.left == 0 {
		return nil
	}
	b.left--
	if b.refused != nil {
		b.refused()
	}
	return &jetstream.APIError{ErrorCode: jetstream.JSErrCodeStreamWrongLastSequenceConstant}
}

func (b *busy) Create(ctx context.Context, key string, value []byte, opts ...jetstream.KVCreateOpt) (uint64, error) {
	if err := b.refuse(); err != nil {
		return 0, err
	}
	return b.KeyValue.Create(ctx, key, value, opts...)
}

func (b *busy) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if err := b.refuse(); err != nil {
		return 0, err
	}
	return b.KeyValue.Update(ctx, key, value, revision)
}

// onePartition returns a log and its registry.
func onePartition(t *testing.T) (*eventlog.Log, *Registry) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	l := must.Value(eventlog.Create(t.Context(), natstest.Start(t).Connect(), eventlog.Settings{Partitions: 1}, quiet))(t)
	t.Cleanup(l.Close)
	r := must.Value(Create(t.Context(), l, quiet))(t)
	t.Cleanup(r.Close)
	return l, r
}

func TestWrite_AnotherOneIsUnderWay(t *testing.T) {
	_, r := onePartition(t)
	b := &busy{KeyValue: r.kv}
	r.kv = bucket.Patient(r.nc, b)
	b.left = 3
	rec, err := r.Create(t.Context(), New("s", "", nil, time.Now()))
	if err != nil || rec.Revision == 0 {
		t.Fatalf("%+v, %v", rec, err)
	}
	b.left = 3
	if err := r.End(t.Context(), "s", "", false); err != nil || b.left != 0 {
		t.Fatal(err)
	}
	again, ok := r.Session("s")
	if !ok || again.State != Closed {
		t.Fatalf("the copy is %+v", again)
	}
	// The log has the session that could not be written to the registry in time.
	b.left = 1_000_000
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.refused = cancel
	rec = must.Value(r.Create(ctx, New("t", "", nil, time.Now())))(t)
	b.left = 0
	if got, err := r.Get(t.Context(), "t"); err != nil || got.Life != rec.Life || got.Revision == 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// While a new watch fills the next copy, the previous one may lack sessions that were opened long ago.
func TestMatching_CopyIsReplaced(t *testing.T) {
	_, r := onePartition(t)
	names := func() string {
		all, err := r.Matching(math.MaxInt, func(Record) bool { return true })
		if errors.Is(err, ErrUnavailable) {
			return "unavailable"
		}
		var names []string
		for _, rec := range all {
			names = append(names, rec.Session)
		}
		return strings.Join(names, " ")
	}
	must.Value(r.Create(t.Context(), New("s", "", nil, time.Now())))(t)
	if got := names(); got != "s" {
		t.Errorf("got %q", got)
	}
	r.Close() // the test follows the bucket
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	_ = r.followOnce(cut, func() { t.Error("it is copied without NATS") })
	if got := names(); got != "unavailable" {
		t.Errorf("while the copy is replaced: got %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_ = r.followOnce(ctx, func() {
		if got := names(); got != "s" {
			t.Errorf("once it is replaced: got %q", got)
		}
		cancel()
	})
	if got := names(); got != "unavailable" {
		t.Errorf("once the watch has ended: got %q", got)
	}
}

// A caller that needs no more than a few records has no more copied.
func TestMatching_Most(t *testing.T) {
	_, r := onePartition(t)
	for _, name := range []string{"a", "b", "c", "other"} {
		must.Value(r.Create(t.Context(), New(name, "", nil, time.Now())))(t)
	}
	for most, want := range []int{0, 1, 2, 3, 3} {
		all, err := r.Matching(most, func(rec Record) bool { return rec.Session != "other" })
		if err != nil || len(all) != want || slices.ContainsFunc(all, func(rec Record) bool { return rec.Session == "other" }) {
			t.Errorf("up to %d: %v, %v, want %d", most, all, err, want)
		}
	}
}

func TestCASError(t *testing.T) {
	for name, tt := range map[string]struct{ err, want error }{
		"one server":   {&jetstream.APIError{ErrorCode: jetstream.JSErrCodeStreamWrongLastSequence}, ErrConflict},
		"replicas":     {&jetstream.APIError{ErrorCode: jetstream.JSErrCodeStreamWrongLastSequenceConstant}, ErrConflict},
		"other answer": {&jetstream.APIError{ErrorCode: 10008}, ErrUnavailable},
		"no answer":    {io.EOF, ErrUnavailable},
	} {
		got := casError(tt.err)
		if !errors.Is(got, tt.want) || !errors.Is(got, tt.err) || errors.Is(got, ErrConflict) && errors.Is(got, ErrUnavailable) {
			t.Errorf("%s: %v", name, got)
		}
	}
	if casError(nil) != nil {
		t.Error("no error is one")
	}
}

func TestBucketCopy_WatchIsBehindTheWriter(t *testing.T) {
	at := func(revision uint64) Record { return Record{Session: "k", Revision: revision} }
	c := newBucketCopy(false)
	expect := func(what string, revision uint64) {
		t.Helper()
		if got := c.records["k"].Revision; got != revision {
			t.Errorf("%s: revision %d, want %d", what, got, revision)
		}
	}
	c.show("k", at(1), false)
	c.put("k", at(3))
	c.show("k", at(2), false)
	expect("an older one is shown", 3)
	c.show("k", at(2), true)
	expect("an older removal is shown", 3)
	c.show("k", at(3), false)
	c.show("k", at(4), true)
	expect("it is removed", 0)
	c.put("k", at(3))
	expect("the writer of what is removed already comes late", 0)
	c.put("k", at(6))
	c.put("k", at(5))
	expect("two writers come out of order", 6)
}

// A copy that lags has the record of the former owner. The new one gets the session all
// the same.
func TestVisible_NameHasAnotherOwnerByNow(t *testing.T) {
	l, r := onePartition(t)
	alices := must.Value(r.Create(t.Context(), New("s", "alice", nil, time.Now())))(t)
	must.NoError(t, r.End(t.Context(), "s", "", false))
	behind := func(rec Record) {
		t.Helper()
		r.mu.Lock()
		r.copy.set(key("s"), rec)
		r.mu.Unlock()
	}
	bobs := func(rec Record) bool { return rec.Owner == "bob" }
	behind(alices)
	if rec, err := r.Visible(t.Context(), "s", bobs); err != ErrNotFound { //nolint:errorlint // the very same error
		t.Errorf("ended, but not removed: %+v, %v", rec, err)
	}
	ended := must.Value(r.Get(t.Context(), "s"))(t)
	must.NoError(t, eventlogtest.Forget(t.Context(), l, "s"))
	must.NoError(t, r.Remove(t.Context(), ended))
	for name, rec := range map[string]Record{"open": alices, "ended": ended} {
		behind(rec)
		if rec, err := r.Visible(t.Context(), "s", bobs); err != ErrNotFound { //nolint:errorlint // the very same error
			t.Errorf("%s, and removed: %+v, %v", name, rec, err)
		}
	}
	his := must.Value(r.Create(t.Context(), New("s", "bob", nil, time.Now())))(t)
	for name, rec := range map[string]Record{"open": alices, "ended": ended} {
		behind(rec)
		if rec, err := r.Visible(t.Context(), "s", bobs); err != nil || rec.Life != his.Life {
			t.Errorf("%s, and opened again: %+v, %v", name, rec, err)
		}
	}
}

// A server reports that a bucket does not exist before it has deleted the files: one that is created at this moment
// has the records of the old one, and loses its files (docs/upstream/0041).
func TestFollow_BucketIsMadeAgainOnceItsFilesAreDeleted(t *testing.T) {
	natstest.InVirtualTime(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		l := must.Value(eventlog.Create(t.Context(), natstest.StartInMemory(t, t.TempDir()).Connect(), eventlog.Settings{Partitions: 1}, quiet))(t)
		defer l.Close()
		r := must.Value(Create(t.Context(), l, quiet))(t)
		defer r.Close()
		must.Value(r.Create(t.Context(), New("s", "", nil, time.Now())))(t)
		js := natstest.JetStream(t, r.nc)
		must.NoError(t, js.DeleteKeyValue(t.Context(), Bucket))
		deleted := time.Now()
		waittest.NoError(t, func() error { _, err := js.KeyValue(t.Context(), Bucket); return err })
		if after := time.Since(deleted); after < retryEvery+natsconn.DeletedWithin { // its consumer has ended, and it is asked for again
			t.Errorf("the bucket is made again after %s", after)
		}
		if rec := must.Value(r.registered(t.Context(), "s"))(t); rec.Session != "" {
			t.Errorf("the bucket that was made again has %+v", rec)
		}
	})
}
