package delivery

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/quota"
)

// The bytes that a socket took and the rest that is cut together are whole blocks, and
// the cursor moves back to their last event.
func TestOutbox_CutBetweenBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := emptyWindow(16 << 10)
		at := window.Place{Session: "s", Stream: "a"}
		count := rapid.Uint64Range(0, 30).Draw(t, "events")
		for n := uint64(1); n <= count; n++ {
			w.Append(messageAt(3*n, at, fmt.Sprintf(`{"n":%d,"method":"m%d"}`, n, n%3)), 0)
		}
		r := cursor.InMemory(w, at, 0)
		s, _, _ := r.Quick(nil)
		s.Ended = rapid.Bool().Draw(t, "ended")
		methods := rapid.SliceOfN(rapid.SampledFrom([]string{"m0", "m1", "m2"}), 1, 3).Draw(t, "methods")
		(&Filter{Methods: methods}).show(&s)
		if rapid.Bool().Draw(t, "gap") {
			s.Gaps = []cursor.Gap{{Reason: cursor.ReasonExpired, Stream: "a"}}
		}
		r.Cursor = 3*count + 1 // the empty end of the log
		head := []byte(rapid.StringN(0, 9, -1).Draw(t, "head"))
		c := NewSSE(&Connections{}, r, Request{}, rapid.Bool().Draw(t, "envelope"))
		c.Head, c.Chunked = head, rapid.Bool().Draw(t, "chunked")
		var o outbox
		o.fill(c, s)
		all := bytes.Join(o.buffers, nil)
		if len(all) != o.size {
			t.Fatalf("size %d of %d", o.size, len(all))
		}
		if o.size == 0 {
			return
		}
		n := rapid.IntRange(0, o.size-1).Draw(t, "taken")
		length, told := o.cut(n)
		rest := bytes.Join(o.rest(n, length, c.Format.Rewrites()), nil)
		if len(rest) == 0 || !bytes.Equal(rest, all[n:n+len(rest)]) {
			t.Fatalf("the rest of %q after %d is %q", all, n, rest)
		}
		sent := all[:n+len(rest)]
		if c.Chunked && len(sent) > len(head) { // whole chunks, and an end only after everything
			_, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(sent[len(head):])))
			ended := s.Ended && len(sent) == len(all)
			if ended != (err == nil) || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%q: %v", sent, err)
			}
		}
		if told > len(s.Items) && len(sent) != len(all) {
			t.Fatalf("everything was told, and %q is sent of %q", sent, all)
		}
		if got := bytes.Count(sent, []byte(`"n":`)); got != min(told, len(s.Items)) {
			t.Fatalf("%d events are sent and %d told: %q", got, told, sent)
		}
		r.GoBack(s, told)
		want := r.Cursor
		switch {
		case told > len(s.Items):
			want = 3*count + 1
		case told > 0:
			want = s.Items[told-1].Sequence
		case len(s.Items) > 0:
			want = s.Items[0].Sequence - 1
		}
		if r.Cursor != want {
			t.Fatalf("the cursor is %d, want %d", r.Cursor, want)
		}
	})
}

// emptyWindow is a window that has caught up with an empty partition.
func emptyWindow(budget int) *window.Window {
	w := window.New(budget, func(string) {})
	w.Begin(eventlog.State{Origin: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: 1}, 0, 1)
	w.Reach(0, 0)
	return w
}

func messageAt(sequence uint64, at window.Place, data string) eventlog.Entry {
	return eventlog.Entry{
		Subject: event.Subject{Session: at.Session, Life: at.Life, Stream: at.Stream}, Valid: true,
		Sequence: sequence, Time: time.Unix(0, int64(sequence)), Type: "message", Data: []byte(data), //nolint:gosec // small
	}
}

func TestOutbox_JoinsFrames(t *testing.T) {
	w := emptyWindow(16 << 10) // segments of 1 KiB
	at := window.Place{Session: "s", Stream: "a"}
	for n := uint64(1); n <= 60; n++ {
		w.Append(messageAt(n, at, fmt.Sprintf(`{"n":%d}`, n)), 0)
	}
	v := w.Read(&cursor.InMemory(w, at, 0).ChainCursor, window.Limits{Events: 100, Bytes: 1 << 20}, nil)
	var want []byte
	for i := range v.Items {
		want = append(want, v.Items[i].Frame...)
	}
	var o outbox
	o.frames(v.Items)
	if got := bytes.Join(o.buffers, nil); !bytes.Equal(got, want) {
		t.Errorf("the joined frames are not the frames:\n%s\n%s", got, want)
	}
	if len(o.buffers) < 2 || len(o.buffers) > 10 {
		t.Errorf("%d frames make %d buffers", len(v.Items), len(o.buffers))
	}
}

// A client that reads slowly does not hold the segment of its frame for longer than a time-out, and the copy that
// it holds instead counts.
func TestFlush_SlowClientHoldsNoSegment(t *testing.T) {
	for room, want := range map[int64]error{400: nil, 50: os.ErrDeadlineExceeded} {
		synctest.Test(t, func(t *testing.T) {
			const timeout = 10 * time.Second
			segment := bytes.Repeat([]byte("a"), 101)
			memory := quota.NewPool(room)
			held := memory.Part("c")
			here, client := net.Pipe()
			defer func() { _ = client.Close() }()
			done := make(chan error, 1)
			go func() {
				done <- writeAll(here, net.Buffers{segment[:50], segment[50:]}, timeout, func(bytes int) bool { return held.Resize(int64(bytes)) })
			}()
			got := make([]byte, 1)
			must.Value(io.ReadFull(client, got))(t)
			time.Sleep(timeout + time.Second)
			synctest.Wait()
			copy(segment, bytes.Repeat([]byte("b"), 101)) // it is used again
			if want != nil {
				if err := <-done; !errors.Is(err, want) {
					t.Errorf("without memory for it: %v", err)
				}
			} else {
				if memory.Used() != 100 {
					t.Errorf("%d bytes are counted", memory.Used())
				}
				rest := make([]byte, 100)
				if _, err := io.ReadFull(client, rest); err != nil || !bytes.Equal(rest, bytes.Repeat([]byte("a"), 100)) {
					t.Errorf("the rest is %s, %v", rest, err)
				}
				must.NoError(t, <-done)
			}
		})
	}
}
