package mcpstore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"pgregory.net/rapid"
)

// With any outcome of single appends, and any number of the oldest events deleted:
// After yields all events after the index, or an error.
func TestHistory_CompleteOrAnError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log []record         // in the order of the log
		var late []record        // stored when its Append had failed, or noted then
		appended := []string{}   // the events that the SDK has counted
		stored := map[int]bool{} // which of them are in the log
		sequence, writer := uint64(0), "w0"
		put := func(r record) {
			sequence++
			r.sequence = sequence
			log = append(log, r)
			if !r.lost {
				stored[r.n] = true
			}
		}
		newest := true // the log has the newest Append
		for range rapid.IntRange(0, 12).Draw(t, "appends") {
			n := len(appended)
			data := fmt.Sprint(n)
			r := record{index: index{n: n, writer: writer}, data: []byte(data)}
			appended = append(appended, data)
			newest = true
			switch rapid.SampledFrom([]string{"stored", "stored", "stored", "failed", "unknown", "twice", "taken over"}).Draw(t, "outcome") {
			case "failed":
				late, newest = append(late, record{index: index{n: n, writer: writer, lost: true}}), false
			case "unknown":
				late, newest = append(late, r), false
			case "twice":
				put(r)
				late = append(late, record{index: index{n: n, writer: writer, lost: true}})
			case "taken over": // by another process, which continues where the log ends
				put(r)
				writer = fmt.Sprint("w", n+1)
				late = nil
			default:
				put(r)
			}
			if len(late) > 0 && rapid.Bool().Draw(t, "late") {
				r := late[len(late)-1]
				late = nil
				if r.n == n { // a record after a later event is not in order
					put(r)
					newest = true
				} else {
					sequence++
					r.sequence = sequence
					log = append(log, r)
				}
			}
		}
		gone := rapid.IntRange(0, len(log)).Draw(t, "gone")
		for _, r := range log[:gone] {
			delete(stored, r.n)
		}
		cleared := uint64(0)
		if rapid.IntRange(0, 5).Draw(t, "clear") == 0 {
			cleared = uint64(rapid.IntRange(0, len(log)).Draw(t, "cleared")) //nolint:gosec // small
			for _, r := range log {
				if r.sequence <= cleared {
					delete(stored, r.n)
				}
			}
		}
		count := len(appended) // by the writer's count
		if newest && stored[len(appended)-1] && rapid.Bool().Draw(t, "elsewhere") {
			count = 0 // another process knows only the log
		}
		h := newHistory(log[gone:], cleared)
		for index := -1; index < len(appended)+2; index++ {
			got, err := h.after(index, count)
			whole := true
			for n := index + 1; n < len(appended); n++ {
				whole = whole && stored[n]
			}
			switch {
			case index >= len(appended):
				if !errors.Is(err, ErrAhead) {
					t.Fatalf("after %d of %d: %q, %v", index, len(appended), got, err)
				}
			case !whole:
				if !errors.Is(err, mcp.ErrEventsPurged) || got != nil {
					t.Fatalf("after %d: %q, %v, though something is missing", index, got, err)
				}
			default:
				if err != nil || len(got) != len(appended)-index-1 {
					t.Fatalf("after %d: %q, %v, though nothing is missing", index, got, err)
				}
				for i := range got {
					if string(got[i]) != appended[index+1+i] {
						t.Fatalf("after %d: %q", index, got)
					}
				}
			}
		}
	})
}

// The first writer has failed to store 1, and has continued after the second one's.
func TestHistory_EarlierWriterContinues(t *testing.T) {
	var log []record
	for n, writer := range []string{"a", "b", "a"} {
		log = append(log, record{index: index{n: n, writer: writer}, sequence: uint64(n + 1)}) //nolint:gosec // small
	}
	if all, err := newHistory(log, 0).after(0, 0); !errors.Is(err, ErrForked) {
		t.Errorf("%q, %v", all, err)
	}
	if all, err := newHistory(log[:2], 0).after(0, 0); err != nil || len(all) != 1 {
		t.Errorf("a stream that was taken over: %q, %v", all, err)
	}
}

func FuzzIndex(f *testing.F) {
	for _, s := range []string{"0.w", "17.k3j9x2ab", "17.k3j9x2ab.lost", "1", "-1.w", "+1.w", "01.w", "1..lost", "1.w.lost.lost", "99999999999999999999.w"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		i, ok := parseIndex(s)
		if ok && (i.String() != s || i.n < 0 || i.writer == "") {
			t.Errorf("%q is read as %+v", s, i)
		}
	})
}
