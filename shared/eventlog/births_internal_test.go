package eventlog

import (
	"errors"
	"fmt"
	"testing"
)

func TestBirths_Forgotten(t *testing.T) {
	var b births
	at := birthPlace{"s", "l", "t"}
	known := knowledge{generation: "a"}
	bear := func(at birthPlace, known knowledge, err error) {
		t.Helper()
		has, wait, finish := b.begin(at, known)
		if has || wait != nil {
			t.Fatal("it is not to be born")
		}
		finish(err)
	}
	has := func(at birthPlace, known knowledge) bool {
		has, _, finish := b.begin(at, known)
		if finish != nil {
			finish(errors.New("only asked"))
		}
		return has
	}
	bear(at, known, ErrUnavailable)
	if has(at, known) {
		t.Error("it has a birth that failed")
	}
	bear(at, known, nil)
	for name, tt := range map[string]struct {
		at    birthPlace
		known knowledge
		want  bool
	}{
		"as it is":                     {at, known, true},
		"another generation":           {at, knowledge{"b", 0}, false},
		"without the janitor's word":   {at, knowledge{"a", 1}, false},
		"another stream":               {birthPlace{"s", "l", "u"}, known, false},
		"another life of the session":  {birthPlace{"s", "m", "t"}, known, false},
		"a stream of the same letters": {birthPlace{"sl", "", "t"}, known, false},
	} {
		if got := has(tt.at, tt.known); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	// A birth of the earlier generation that is answered late counts for that one only.
	_, _, late := b.begin(birthPlace{"s", "l", "late"}, known)
	bear(at, knowledge{"b", 0}, nil)
	late(nil)
	if has(birthPlace{"s", "l", "late"}, knowledge{"b", 0}) {
		t.Error("a birth of another generation counts")
	}
}

func TestBirths_Bounded(t *testing.T) {
	var b births
	known := knowledge{generation: "a"}
	used := birthPlace{"s", "l", "used"}
	has := func(at birthPlace) bool {
		has, _, finish := b.begin(at, known)
		if finish != nil {
			finish(nil)
		}
		return has
	}
	has(used)
	for i := range 5 * maxBirths {
		has(birthPlace{"s", "l", fmt.Sprint(i)})
		if i%1000 == 0 && !has(used) {
			t.Fatalf("what is used is forgotten after %d others", i)
		}
	}
	if b.born.Len() > maxBirths || len(b.under) > 0 {
		t.Errorf("%d are remembered, and %d under way", b.born.Len(), len(b.under))
	}
}
