package births

import (
	"errors"
	"fmt"
	"testing"
)

func TestBirths_Forgotten(t *testing.T) {
	var b Births
	at := Stream{"s", "l", "t"}
	known := Epoch{Generation: "a"}
	bear := func(at Stream, known Epoch, err error) {
		t.Helper()
		has, wait, finish := b.Begin(at, known)
		if has || wait != nil {
			t.Fatal("it is not to be born")
		}
		finish(err)
	}
	has := func(at Stream, known Epoch) bool {
		has, _, finish := b.Begin(at, known)
		if finish != nil {
			finish(errors.New("only asked"))
		}
		return has
	}
	bear(at, known, errors.New("it is not stored"))
	if has(at, known) {
		t.Error("it has a birth that failed")
	}
	bear(at, known, nil)
	for name, tt := range map[string]struct {
		at    Stream
		known Epoch
		want  bool
	}{
		"as it is":                     {at, known, true},
		"another generation":           {at, Epoch{Generation: "b"}, false},
		"without the janitor's word":   {at, Epoch{Generation: "a", Unconfirmed: 1}, false},
		"another connection":           {at, Epoch{Generation: "a", Reconnects: 1}, false},
		"another stream":               {Stream{"s", "l", "u"}, known, false},
		"another life of the session":  {Stream{"s", "m", "t"}, known, false},
		"a stream of the same letters": {Stream{"sl", "", "t"}, known, false},
	} {
		if got := has(tt.at, tt.known); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	// A birth of the earlier generation that is answered late counts for that one only.
	_, _, late := b.Begin(Stream{"s", "l", "late"}, known)
	bear(at, Epoch{Generation: "b"}, nil)
	late(nil)
	if has(Stream{"s", "l", "late"}, Epoch{Generation: "b"}) {
		t.Error("a birth of another generation counts")
	}
}

func TestBirths_Bounded(t *testing.T) {
	var b Births
	known := Epoch{Generation: "a"}
	used := Stream{"s", "l", "used"}
	has := func(at Stream) bool {
		has, _, finish := b.Begin(at, known)
		if finish != nil {
			finish(nil)
		}
		return has
	}
	has(used)
	for i := range 5 * maxStreams {
		has(Stream{"s", "l", fmt.Sprint(i)})
		if i%1000 == 0 && !has(used) {
			t.Fatalf("what is used is forgotten after %d others", i)
		}
	}
	if b.born.Len() > maxStreams || len(b.pending) > 0 {
		t.Errorf("%d are remembered, and %d under way", b.born.Len(), len(b.pending))
	}
}
