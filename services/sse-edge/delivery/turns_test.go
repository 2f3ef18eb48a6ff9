package delivery

import (
	"testing"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// A connection that waits until a stream is quiet, for which the log is being read, does not wait without end
// when another connection waits for the same.
func TestRest_Twice(t *testing.T) {
	ended := 0
	w, c := &worker{}, &Connection{Companion: noCompanion{}, phase: reading, cancel: func() { ended++ }}
	first, second := make(chan string, 1), make(chan string, 1)
	w.silence(c, first)
	cursor := "a"
	c.Turns.next = &cursor // it was its turn again meanwhile
	w.silence(c, second)
	select {
	case where := <-first:
		if where != "" || c.Turns.next != nil {
			t.Errorf("it stands at %q, and has a turn: %t", where, c.Turns.next != nil)
		}
	default:
		t.Error("the first one still waits")
	}
	if len(second) > 0 || ended == 0 {
		t.Errorf("it is quiet before it was read for: %t; the read, which may wait for memory, was ended %d times", len(second) > 0, ended)
	}
}

// moves counts how often a stream's cursor was moved to that of another connection.
type moves struct {
	NoCompanion
	n int
}

func (m *moves) Moved() { m.n++ }

// A quiet connection does not read. A generation that begins meanwhile does not keep it from taking over the cursor of
// the connection that had the messages.
func TestTurn_GenerationHasBegun(t *testing.T) {
	at, begun := window.Place{Session: "s", Stream: "a"}, []event.Generation{{ID: "b", Start: 1}, {ID: "c", Start: 4}}
	w := emptyWindow(1 << 10)
	w.Reach(3, 0)
	var moved moves
	c := NewSSE(&Connections{cfg: Config{Base: t.Context()}}, cursor.InMemory(w, at, 1), Request{}, false)
	c.WaitTurn(false)
	c.Companion, c.Turns.served = &moved, true
	if !w.Extend(eventlog.State{Origin: "b", Generations: begun}) {
		t.Fatal("the window was rolled back")
	}
	w.Reach(6, 0)
	other := event.ID{Stream: "a", Tag: event.TagParts{Origin: "b", Generation: "c", Stream: "a"}.Tag(), Sequence: 5} // as InMemory makes them
	newWorker(c.of).takeTurn(c, other.String())
	if moved.n != 1 || len(c.Reader.Pending) > 0 {
		t.Errorf("the cursor was moved %d times; the gaps are %v", moved.n, c.Reader.Pending)
	}
}
