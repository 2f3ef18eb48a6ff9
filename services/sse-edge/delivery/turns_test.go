package delivery

import "testing"

// Who waits until a stream is quiet, for which the log is being read, does not wait for ever when somebody
// else waits for the same.
func TestRest_Twice(t *testing.T) {
	ended := 0
	w, st := &worker{}, &Stream{phase: reading, cancel: func() { ended++ }}
	first, second := make(chan string, 1), make(chan string, 1)
	w.rest(st, first)
	cursor := "a"
	st.Turns.next = &cursor // it was its turn again meanwhile
	w.rest(st, second)
	select {
	case where := <-first:
		if where != "" || st.Turns.next != nil {
			t.Errorf("it stands at %q, and has a turn: %t", where, st.Turns.next != nil)
		}
	default:
		t.Error("the first one still waits")
	}
	if len(second) > 0 || ended == 0 {
		t.Errorf("it is quiet before it was read for: %t; the read, which may wait for memory, was ended %d times", len(second) > 0, ended)
	}
}
