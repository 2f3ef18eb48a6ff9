package eventlog

import (
	"fmt"
	"testing"

	"rejoin/shared/event"
)

func TestBirths_Forgotten(t *testing.T) {
	var b births
	at := event.Subject{Session: "s", Life: "l", Stream: "t"}
	known := epoch{generation: "a"}
	if b.has(at, epoch{}) {
		t.Error("it has a birth that nobody has added")
	}
	b.add(at, known)
	for name, tt := range map[string]struct {
		at    event.Subject
		known epoch
		want  bool
	}{
		"as it is":                     {at, known, true},
		"another generation":           {at, epoch{generation: "b"}, false},
		"another connection":           {at, epoch{generation: "a", connection: 1}, false},
		"another stream":               {event.Subject{Session: "s", Life: "l", Stream: "u"}, known, false},
		"another life of the session":  {event.Subject{Session: "s", Life: "m", Stream: "t"}, known, false},
		"a stream of the same letters": {event.Subject{Session: "sl", Stream: "t"}, known, false},
	} {
		if got := b.has(tt.at, tt.known); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	// A birth of the earlier generation that is answered late counts for that one only.
	b.add(at, epoch{generation: "b"})
	b.add(event.Subject{Session: "s", Life: "l", Stream: "late"}, known)
	if b.has(event.Subject{Session: "s", Life: "l", Stream: "late"}, epoch{generation: "b"}) {
		t.Error("a birth of another generation counts")
	}
}

func TestBirths_Bounded(t *testing.T) {
	var b births
	known := epoch{generation: "a"}
	used := event.Subject{Session: "s", Life: "l", Stream: "used"}
	b.add(used, known)
	for i := range 5 * maxBirths {
		b.add(event.Subject{Session: "s", Life: "l", Stream: fmt.Sprint(i)}, known)
		if i%1000 == 0 && !b.has(used, known) {
			t.Fatalf("what is used is forgotten after %d others", i)
		}
	}
	if b.born.Len() > maxBirths {
		t.Errorf("%d are remembered", b.born.Len())
	}
}
