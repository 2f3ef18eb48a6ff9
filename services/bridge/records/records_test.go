package records

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

// empty returns the bucket of a new NATS server, and the key of a call. options are those of its connection.
func empty(t *testing.T, cfg jetstream.StreamConfig, options ...nats.Option) (r *Bucket, key string) {
	t.Helper()
	js := natstest.JetStream(t, natstest.Start(t).Connect(options...))
	kv := must.Value(bucket.Ensure(t.Context(), js, cfg))(t)
	return &Bucket{nc: js.Conn(), log: slog.New(slog.DiscardHandler), JS: js, KV: kv, written: map[string]*Record{}}, Key("s", "c1")
}

// Each call over half a second leaves a marker, so those stay for a short time.
func TestBucket_MarkerOfARemovedRecord(t *testing.T) {
	r, key := empty(t, rpc.CallsConfig(1))
	for range 2 { // also after one of before
		must.NoError(t, r.Put(t.Context(), key, Record{ID: "7"}))
		must.NoError(t, r.remove(t.Context(), key))
	}
	stream := must.Value(r.JS.Stream(t.Context(), "KV_"+rpc.CallsBucket))(t)
	marker := must.Value(stream.GetLastMsgForSubject(t.Context(), "$KV."+rpc.CallsBucket+"."+key))(t)
	ttl, err := time.ParseDuration(marker.Header.Get(jetstream.MsgTTLHeader))
	if err != nil || ttl > time.Minute {
		t.Errorf("the marker stays for %s: %v", ttl, err)
	}
}

// NATS may have a record that it did not acknowledge.
func TestBucket_RemovesARecordOfUnknownOutcome(t *testing.T) {
	ctx, lose := context.WithCancel(t.Context())
	r, key := empty(t, rpc.CallsConfig(1), nats.SetCustomDialer(&natstest.Link{Before: func(data []byte) {
		if bytes.Contains(data, []byte(Key("s", "c1"))) {
			lose() // Put does not wait for the acknowledgement
		}
	}}))
	if err := r.Put(ctx, key, Record{ID: "7"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	waittest.NoError(t, func() error {
		_, err := r.KV.Get(t.Context(), key)
		return err
	}, jetstream.ErrKeyNotFound)
	must.NoError(t, r.write(nil, false))
	if _, err := r.KV.Get(t.Context(), key); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("the record of a call that is over: %v", err)
	}
}

// Clients must not fill the disk of NATS with notes of listeners, or of tasks, nor take the room of calls and of bridges'
// names.
func TestBucket_IsFull(t *testing.T) {
	cfg := rpc.CallsConfig(1)
	if cfg.MaxBytes <= 0 || rpc.AttachConfig(1).MaxBytes <= 0 {
		t.Error("a bucket has no limit")
	}
	cfg.MaxBytes = 10_000
	r, key := empty(t, cfg)
	var full error
	for n := byte(0); full == nil && n < 200; n++ {
		_, full = r.Remember(t.Context(), [32]byte{n}, time.Hour)
	}
	if !errors.Is(full, bucket.ErrNearlyFull) {
		t.Errorf("a full bucket takes notes: %v", full)
	}
	must.NoError(t, r.Put(t.Context(), key, Record{ID: "7"}))
	for n := range byte(2) {
		must.Value(r.Remember(t.Context(), [32]byte{n}, time.Second))(t)
	}
	waittest.Until(t, "notes that expire leave room for another", func() bool {
		_, full = r.Remember(t.Context(), [32]byte{255}, time.Hour)
		return full == nil
	})
}

// A bridge whose name was taken while it was paused leaves the records to the next one, which continues from them.
func TestBucket_WrittenWithoutTheName(t *testing.T) {
	r, key := empty(t, rpc.CallsConfig(1))
	must.NoError(t, r.Put(t.Context(), key, Record{ID: "7"}))
	looks := make(chan error)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		r.Run(ctx, func(ctx context.Context) error {
			select {
			case err := <-looks:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}, func() []OpenCall { return nil })
	})
	replaced := errors.New("another bridge has the name")
	looks <- replaced
	looks <- replaced // the first look has done its writes
	must.Value(r.KV.Get(t.Context(), key))(t)
	looks <- nil
	looks <- nil // likewise
	if _, err := r.KV.Get(t.Context(), key); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("the record of a call that is over: %v", err)
	}
	stop()
	running.Wait()
}

// Nor does it write when it stops, unless it learns that the name is its own.
func TestBucket_WriteAllWithoutTheName(t *testing.T) {
	r, key := empty(t, rpc.CallsConfig(1))
	looks := 0
	r.WriteAll(func(context.Context) error {
		if looks++; looks == 1 {
			return errors.New("whose the name is cannot be looked up")
		}
		if _, err := r.KV.Get(t.Context(), key); !errors.Is(err, jetstream.ErrKeyNotFound) {
			t.Errorf("the record is written: %v", err)
		}
		return nil
	}, []OpenCall{{Session: "s", Stream: "c1", ID: "7"}})
	if _, err := r.KV.Get(t.Context(), key); err != nil || looks != 2 {
		t.Errorf("after %d looks: %v", looks, err)
	}
}

// The bucket also has the notes of other packages, and a later version may note more. Load leaves them out: a bridge
// that takes over adopts all that it returns, and would remove them.
func TestBucket_LoadsRecordsOfCallsAlone(t *testing.T) {
	r, key := empty(t, rpc.CallsConfig(1))
	must.NoError(t, r.Put(t.Context(), key, Record{ID: "7"}))
	for _, other := range []string{"=later.s.c1", "=later", key + ".later"} {
		must.Value(r.KV.Put(t.Context(), other, []byte(`{"id":"7"}`)))(t)
	}
	if all, err := r.Load(t.Context()); err != nil || len(all) != 1 || all[key].ID != "7" {
		t.Errorf("%v, %v", all, err)
	}
}

// The clock of another bridge does not decide when a record is due again.
func TestBucket_WritesRecordsOfAnotherClock(t *testing.T) {
	r, key := empty(t, rpc.CallsConfig(1))
	must.Value(r.KV.PutString(t.Context(), key, `{"id":"7","updated":"9999-12-31T23:59:59Z"}`))(t)
	r.Adopt(key, must.Value(r.Load(t.Context()))(t)[key])
	must.NoError(t, r.write([]OpenCall{{Session: "s", Stream: "c1", ID: "8"}}, false))
	if all, err := r.Load(t.Context()); err != nil || all[key].ID != "8" {
		t.Errorf("%v, %v", all, err)
	}
}
