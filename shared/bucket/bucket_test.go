package bucket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

// seen records the entries that a follower shows, in a line each.
type seen struct {
	t     *testing.T
	lines chan string
	ended chan error
	stop  context.CancelFunc
}

func follow(t *testing.T, js jetstream.JetStream) *seen {
	ctx, cancel := context.WithCancel(t.Context())
	s := &seen{t: t, lines: make(chan string, 100), ended: make(chan error, 1), stop: cancel}
	go func() {
		s.ended <- bucket.Follow(ctx, js, "B", func(e bucket.Entry) {
			s.lines <- fmt.Sprintf("%s=%s@%d removed=%t", e.Key, e.Value, e.Revision, e.Removed)
		}, func() { s.lines <- "whole" })
	}()
	t.Cleanup(cancel)
	return s
}

func (s *seen) expect(want ...string) {
	s.t.Helper()
	var got []string
	for range want {
		got = append(got, waittest.Receive(s.t, fmt.Sprintf("an entry after %q", got), s.lines))
	}
	if d := cmp.Diff(want, got); d != "" {
		s.t.Error(d)
	}
}

func (s *seen) end() error {
	s.t.Helper()
	return waittest.Receive(s.t, "the follower ends", s.ended)
}

func create(t *testing.T, js jetstream.JetStream) jetstream.KeyValue {
	t.Helper()
	cfg := bucket.Config("B", "", 1)
	cfg.AllowMsgTTL, cfg.AllowRollup, cfg.SubjectDeleteMarkerTTL = true, true, time.Hour
	return must.Value(bucket.Ensure(t.Context(), js, cfg))(t)
}

func connect(t *testing.T, srv *natstest.Server) jetstream.JetStream {
	t.Helper()
	return natstest.JetStream(t, srv.Connect())
}

// A bucket that an earlier version made has direct gets, which a copy that is behind may answer.
func TestFollow_AsksTheLeader(t *testing.T) {
	srv := natstest.StartParallel(t)
	js := connect(t, srv)
	must.Value(must.Value(js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "B"}))(t).PutString(t.Context(), "key", "value"))(t)
	direct := must.Value(js.Conn().SubscribeSync("$JS.API.DIRECT.GET.>"))(t)
	s := follow(t, js)
	s.expect("key=value@1 removed=false", "whole")
	must.NoError(t, js.Conn().Flush())
	if n, _, err := direct.Pending(); err != nil || n > 0 {
		t.Errorf("%d direct gets, %v", n, err)
	}
}

func TestFollow_ContentsThenChanges(t *testing.T) {
	js := connect(t, natstest.StartParallel(t))
	kv := create(t, js)
	put := func(key, value string) {
		t.Helper()
		must.Value(kv.PutString(t.Context(), key, value))(t)
	}
	empty := follow(t, js)
	empty.expect("whole")
	put("a", "1")
	empty.expect("a=1@1 removed=false") // before it is replaced
	put("b", "1")
	empty.expect("b=1@2 removed=false")
	put("a", "2")
	must.NoError(t, kv.Delete(t.Context(), "b"))
	empty.expect("a=2@3 removed=false", "b=@4 removed=true")

	late := follow(t, js)
	late.expect("a=2@3 removed=false", "b=@4 removed=true", "whole")
	must.NoError(t, kv.Purge(t.Context(), "a", jetstream.PurgeTTL(time.Hour)))
	late.expect("a=@5 removed=true")
	must.Value(kv.Create(t.Context(), "c", []byte("1"), jetstream.KeyTTL(6*time.Second)))(t) // it is shown before
	late.expect("c=1@6 removed=false", "c=@7 removed=true")                                  // it outlived its time

	for _, s := range []*seen{empty, late} {
		s.stop()
		if err := s.end(); !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	}
	began := time.Now()
	waittest.Until(t, "all consumers are removed", func() bool {
		stream := must.Value(js.Stream(t.Context(), "KV_B"))(t)
		return stream.CachedInfo().State.Consumers == 0
	})
	if took := time.Since(began); took > 30*time.Second { // the server removes unused ones after a minute
		t.Errorf("it took %s", took)
	}
}

// Keys that are written again while a copy begins come after all others: until then the copy is not whole. The first
// request for messages ends with "b", which is too large for it, and before the next one "a", which was shown, and "b"
// are written.
func TestFollow_WholeWithKeysThatChangeMeanwhile(t *testing.T) {
	srv := natstest.StartParallel(t)
	kv := create(t, connect(t, srv))
	put := func(key string, size int) {
		if _, err := kv.Put(t.Context(), key, make([]byte, size)); err != nil {
			t.Error(err)
		}
	}
	put("a", 1_000_000)
	put("c", 1_000_000)
	put("b", 200_000)
	requests := 0
	nc := srv.Connect(nats.SetCustomDialer(&natstest.Link{Before: func(data []byte) {
		if !bytes.Contains(data, []byte("CONSUMER.MSG.NEXT")) {
			return
		}
		if requests++; requests == 2 {
			put("a", 1)
			put("b", 1)
		}
	}}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var whole map[string]int
	keys := map[string]int{}
	err := bucket.Follow(ctx, natstest.JetStream(t, nc), "B", func(e bucket.Entry) { keys[e.Key] = len(e.Value) }, func() {
		whole = maps.Clone(keys)
		cancel()
	})
	if want := map[string]int{"a": 1, "b": 1, "c": 1_000_000}; !errors.Is(err, context.Canceled) || requests < 2 || !maps.Equal(whole, want) {
		t.Errorf("after %d requests it has %v (%v)", requests, whole, err)
	}
}

// While keys are written all the time, a copy becomes whole all the same.
func TestFollow_WholeWhileKeysAreWritten(t *testing.T) {
	srv := natstest.StartParallel(t)
	kv := create(t, connect(t, srv))
	ctx, cancel := context.WithCancel(t.Context())
	put := func() {
		if _, err := kv.Put(context.Background(), "a", nil); err != nil {
			t.Error(err)
			cancel()
		}
	}
	put()
	// The leader is never asked without another write before its answer.
	nc := srv.Connect(nats.SetCustomDialer(&natstest.Link{Before: func(data []byte) {
		if bytes.Contains(data, []byte("STREAM.MSG.GET.KV_B")) {
			put()
		}
	}}))
	if err := bucket.Follow(ctx, natstest.JetStream(t, nc), "B", func(bucket.Entry) {}, cancel); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFollow_ConnectionIsLost(t *testing.T) {
	srv := natstest.StartParallel(t)
	js := connect(t, srv)
	create(t, js)
	s := follow(t, js)
	s.expect("whole")
	srv.Stop()
	if err := s.end(); err == nil || t.Context().Err() != nil { // the server may have announced its stop
		t.Errorf("it ended with %v", err)
	}
	if err := follow(t, js).end(); err == nil {
		t.Error("it follows without a connection")
	}
	srv.Start()
	srv.AwaitConn(js.Conn())
	if err := bucket.Follow(t.Context(), js, "NONE", func(bucket.Entry) {}, func() {}); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("a bucket that is not there: %v", err)
	}
}

// A server whose disk has failed keeps its consumers and their heartbeats, and has no new entries for them, as one
// that has paused them.
func TestFollow_ConsumerStandsStill(t *testing.T) {
	for name, whole := range map[string]bool{"while the copy is made": false, "when it is whole": true} {
		t.Run(name, func(t *testing.T) {
			natstest.InVirtualTime(t, func(t *testing.T) {
				js := connect(t, natstest.StartInMemory(t, t.TempDir()))
				kv := create(t, js)
				put := func(key string) {
					if _, err := kv.Put(t.Context(), key, make([]byte, 1_100_000)); err != nil {
						t.Error(err)
					}
				}
				put("a")
				put("b") // in the second request for messages
				stream := must.Value(js.Stream(t.Context(), "KV_B"))(t)
				stop := func() {
					for name := range stream.ConsumerNames(t.Context()).Name() {
						if _, err := stream.PauseConsumer(t.Context(), name, time.Now().Add(time.Hour)); err != nil {
							t.Error(err)
						}
					}
				}
				err := bucket.Follow(waittest.Context(t), js, "B", func(bucket.Entry) {
					if !whole {
						stop()
					}
				}, func() {
					stop()
					put("c")
				})
				if err == nil || err.Error() != "the consumer is behind the bucket" {
					t.Errorf("it ended with %v", err)
				}
			})
		})
	}
}

// A watch that is replaced while it begins is no error to report.
func TestFollow_EndsWithTheCauseOfItsContext(t *testing.T) {
	js := connect(t, natstest.StartParallel(t))
	create(t, js)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("replaced")
	cancel(cause)
	if err := bucket.Follow(ctx, js, "B", func(bucket.Entry) {}, func() {}); !errors.Is(err, cause) {
		t.Errorf("it ends with %v", err)
	}
}

// The consumer lies on any server of a cluster, which may be behind the leader.
func TestFollow_CompleteInACluster(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	nc := must.Value(nats.Connect(c.URL(), nats.Timeout(30*time.Second)))(t)
	t.Cleanup(nc.Close)
	js := natstest.JetStream(t, nc)
	kv := must.Value(bucket.Ensure(t.Context(), js, bucket.Config("B", "", 3)))(t)
	for n := range 200 {
		revision, err := kv.PutString(t.Context(), "key"+strconv.Itoa(n%10), "value")
		must.NoError(t, err)
		var whole uint64
		for err = jetstream.ErrNoHeartbeat; errors.Is(err, jetstream.ErrNoHeartbeat); { // a caller of Follow starts again then
			ctx, cancel := context.WithCancel(t.Context())
			var shown uint64
			err = bucket.Follow(ctx, js, "B", func(e bucket.Entry) { shown = e.Revision }, func() {
				whole = shown
				cancel()
			})
			cancel()
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if whole != revision {
			t.Fatalf("revision %d is there, and the bucket is said to be whole at %d", revision, whole)
		}
	}
}
