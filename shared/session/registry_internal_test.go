package session

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/natstest"
)

// busy is a bucket whose leader is not done yet with an earlier write of the key.
type busy struct {
	jetstream.KeyValue
	left int // how many writes it refuses
}

func (b *busy) refuse() error {
	if b.left == 0 {
		return nil
	}
	b.left--
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

func (b *busy) Purge(ctx context.Context, key string, opts ...jetstream.KVDeleteOpt) error {
	if err := b.refuse(); err != nil {
		return err
	}
	return b.KeyValue.Purge(ctx, key, opts...)
}

func TestAWriteThatComesTooSoonAfterAnotherIsNoConflict(t *testing.T) {
	r, err := Create(t.Context(), natstest.Start(t).Connect(), 1, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	b := &busy{KeyValue: r.kv}
	r.kv = bucket.Patient(b)
	b.left = 3
	rec, err := r.Create(t.Context(), New("s", "", nil, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	b.left = 3
	again, err := r.Update(t.Context(), rec)
	if err != nil {
		t.Fatal(err)
	}
	b.left = 3
	if err := r.Remove(t.Context(), rec); !errors.Is(err, ErrConflict) || b.left != 0 {
		t.Errorf("it is removed at an earlier revision: %v", err)
	}
	b.left = 3
	if err := r.Remove(t.Context(), again); err != nil {
		t.Error(err)
	}
	b.left = 1_000_000
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Create(ctx, rec); !errors.Is(err, ErrExists) {
		t.Errorf("when nobody waits any more: %v", err)
	}
}

func TestErrorsOfAWriteAreNamed(t *testing.T) {
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

func TestWhatWasWrittenIsNotTakenBackByTheWatch(t *testing.T) {
	at := func(revision uint64) Record { return Record{Session: "k", Revision: revision} }
	c := newBucketCopy()
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
