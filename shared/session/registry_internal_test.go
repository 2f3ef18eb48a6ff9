package session

import (
	"errors"
	"io"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

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
