package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// servers parses a test's text of servers, each with its life: "a1 b1 c?2".
func servers(text string) Servers {
	s := Servers{}
	for word := range strings.FieldsSeq(text) {
		s[word[:1]] = word[1:]
	}
	return s
}

func TestServers_MajorityRestarted(t *testing.T) {
	for _, test := range []struct {
		name, known, holders string
		looks                []string
		lost                 bool
		next                 string
	}{
		{"nothing was seen", "a1 b1 c1", "a b c", nil, false, "a1 b1 c1"},
		{"nothing has changed", "a1 b1 c1", "a b c", []string{"a1 b1 c1"}, false, "a1 b1 c1"},
		{"one was restarted", "a1 b1 c1", "a b c", []string{"a2 b1 c1"}, false, "a2 b1 c1"},
		{"two at once", "a1 b1 c1", "a b c", []string{"a2 b2 c1"}, true, "a2 b2 c1"},
		{"all at once", "a1 b1 c1", "a b c", []string{"a2 b2 c2"}, true, "a2 b2 c2"},
		{"two of them are back", "a1 b1 c1", "a b c", []string{"a2 b2"}, true, "a2 b2"},
		{"the third one is back, and one of the others restarted", "a2 b2", "a b c", []string{"a2 b2 c2", "a3 c2"}, false, "a3 b2 c2"},
		{"one of them is back", "a1 b1 c1", "a b c", []string{"a2"}, false, "a?2 b1 c1"},
		{"one after the other are back", "a1 b1 c1", "a b c", []string{"a1 b1 c1", "a2", "a2 b2", "a2 b2 c2"}, true, "a2 b2 c2"},
		{"the last one comes later", "a2 b2 c1", "a b c", []string{"a2 b2", "a2 b2 c2"}, false, "a2 b2 c2"},
		{"one after the other, each seen", "a1 b1 c1", "a b c", []string{"a1 b1 c1", "b1 c1", "a2 b1 c1", "a2 c1", "a2 b2 c1", "a2 b2", "a2 b2 c2"}, false, "a2 b2 c2"},
		{"one after the other, without a look", "a1 b1 c1", "a b c", []string{"a2 b2 c2"}, true, "a2 b2 c2"},
		{"another janitor has seen the first two", "a2 b2 c1", "a b c", []string{"a1 b1 c1", "a2 b2 c2"}, false, "a2 b2 c2"},
		{"another janitor knows more than was seen", "a2 b2 c1", "a b c", []string{"a1 b1 c1", "a2 b2 c1"}, false, "a2 b2 c1"},
		{"one is away for long, and another one restarted", "a1 b1 c1", "a b c", []string{"a2 b1"}, false, "a?2 b1 c1"},
		{"and again", "a?2 b1 c1", "a b c", []string{"a3 b1"}, false, "a?3 b1 c1"},
		{"and the other one", "a?2 b1 c1", "a b c", []string{"a2 b2"}, true, "a2 b2"},
		{"and the one that was away is back", "a?2 b1 c1", "a b c", []string{"a2 b1 c1"}, false, "a2 b1 c1"},
		{"and the one that was away is another one", "a?2 b1 c1", "a b c", []string{"a2 b1 c2"}, true, "a2 b1 c2"},
		{"it was away because it had lost its power too", "a1 b1 c1", "a b c", []string{"a1 b1 c1", "b1", "a2 b1", "a2 b1 c2"}, true, "a2 b1 c2"},
		{"no looks for a while", "a1 b1 c1", "a b c", []string{"a1 b1 c1", "", "a2 b1", "a2 b1 c2"}, true, "a2 b1 c2"},
		{"one was stopped as soon as another one was there", "a1 b1 c1", "a b c", []string{"a1 b1 c1", "b1 c1", "a2 c1", "a2 b2 c1", "a2 b2", "a2 b2 c2"}, false, "a2 b2 c2"},
		{"another janitor has written that down", "a2 b1 c1", "a b c", []string{"a1 b1 c1", "b1 c1", "a2 c1", "a2 b2 c1"}, false, "a2 b2 c1"},
		{"and a third one in doubt", "a?2 b1 c1", "a b c", []string{"a2 c1", "a2 b2 c1"}, true, "a2 b2 c1"},
		{"it is back as it was", "a1 b1 c1", "a b c", []string{"a1 b1 c1", "b1", "a2 b1", "a2 b1 c1"}, false, "a2 b1 c1"},
		{"others than the holders", "a1 b1 c1 d1 e1", "a b c", []string{"a1 b1 c1 d2 e2"}, false, "a1 b1 c1 d2 e2"},
		{"two of five", "a1 b1 c1 d1 e1", "a b c d e", []string{"a2 b2 c1 d1 e1"}, false, "a2 b2 c1 d1 e1"},
		{"three of five", "a1 b1 c1 d1 e1", "a b c d e", []string{"a2 b2 c2 d1 e1"}, true, "a2 b2 c2 d1 e1"},
		{"a single one", "a1 b1 c1", "b", []string{"a1 b2 c1"}, true, "a1 b2 c1"},
		{"not the single one", "a1 b1 c1", "b", []string{"a2 b1 c2"}, false, "a2 b1 c2"},
		{"half of two", "a1 b1", "a b", []string{"a1 b2"}, false, "a1 b2"},
		{"a log of an earlier version", "", "a b c", []string{"a1 b1 c1"}, true, "a1 b1 c1"},
		{"a new server among the holders", "a1 b1 c1", "a b d", []string{"a1 b1 c1 d1"}, false, "a1 b1 c1 d1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var looks []Servers
			for _, text := range test.looks {
				looks = append(looks, servers(text))
			}
			lost, next := servers(test.known).Compare(strings.Fields(test.holders), looks)
			if diff := cmp.Diff(servers(test.next), next); lost != test.lost || diff != "" {
				t.Errorf("lost: %t; %s", lost, diff)
			}
			if again, same := next.Compare(strings.Fields(test.holders), looks); again || !maps.Equal(same, next) {
				t.Errorf("the second time: %t, %v", again, same)
			}
		})
	}
}

// ring is a cluster in a property test.
type ring struct {
	names, holders []string
	lives          map[string]int // of those that are up
	count          int            // lives that were begun
	known          Servers
	looks          []Servers
	cut            bool // the power was cut, and that is not judged yet
}

func (r *ring) start(name string) {
	r.count++
	r.lives[name] = r.count
}

func (r *ring) look() {
	s := Servers{}
	for name, life := range r.lives {
		s[name] = fmt.Sprint(life)
	}
	r.looks = append(r.looks, s)
}

// judge is what the acting janitor does, when the partition has a leader and it has
// looked.
func (r *ring) judge(t *rapid.T) {
	r.look()
	up := 0
	for _, h := range r.holders {
		if r.lives[h] != 0 {
			up++
		}
	}
	if 2*up <= len(r.holders) {
		return
	}
	lost, next := r.known.Compare(r.holders, r.looks)
	if lost != r.cut {
		t.Fatalf("it may have lost something: %t, want %t; known %v, seen %v", lost, r.cut, r.known, r.looks)
	}
	r.known, r.cut = next, false
}

// Servers that are restarted one after the other never make a generation begin; a power
// cut of all always does, in whatever order they start again.
func TestServers_LossNeedsAPowerCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		r := &ring{lives: map[string]int{}}
		for n := range rapid.IntRange(1, 6).Draw(t, "servers") {
			r.names = append(r.names, string(rune('a'+n)))
			r.start(r.names[n])
		}
		shuffled := func() []string {
			names := slices.Clone(r.names)
			rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			return names
		}
		r.holders = shuffled()[:1+rnd.IntN(len(r.names))]
		r.look()
		r.known = maps.Clone(r.looks[0])
		maybe := func(do func()) {
			if rnd.IntN(2) == 0 {
				do()
			}
		}
		judge := func() { r.judge(t) }
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rnd.IntN(4) {
			case 0: // the power is cut
				clear(r.lives)
				r.cut = true
				for _, name := range shuffled() {
					r.start(name)
					maybe(r.look)
					maybe(judge)
				}
				r.look()
			case 1: // another janitor has judged, which has seen the same or more
				judge()
				r.looks = r.looks[rnd.IntN(len(r.looks)):]
			default: // one after the other, for as long as most are there
				some := shuffled()[:1+rnd.IntN(len(r.names))]
				for _, name := range some {
					delete(r.lives, name)
					r.look()
					maybe(judge)
					r.start(name)
					r.cut = r.cut || len(r.holders) == 1 && name == r.holders[0]
					if len(r.holders) <= 2 {
						r.look()
					}
					maybe(judge)
				}
				r.look()
				maybe(judge)
			}
		}
		judge()
	})
}

func TestServers_Restarted(t *testing.T) {
	for _, test := range []struct {
		name, known, holders string
		looks                []string
		ids                  []string
		survives             bool
	}{
		{"two of three", "a1 b1 c1", "a b c", []string{"a1 b1 c1", "c1", "a2 b2 c1"}, []string{"2", "2"}, true},
		{"all", "a1 b1 c1", "a b c", []string{"a1 b1 c1", "a2 b3 c4"}, []string{"2", "3", "4"}, false},
		{"all that hold it", "a1 b1 c1 d1 e1", "a b c", []string{"a1 b1 c1 d1 e1", "d1 e1", "a2 b3 c4 d1 e1"}, []string{"2", "3", "4"}, true},
		{"all that hold it, and a new server", "a1 b1 c1", "a b c", []string{"a1 b1 c1", "a2 b3 c4 d1"}, []string{"2", "3", "4"}, true},
		{"all of the cluster", "a1 b1 c1 d1 e1", "a b c", []string{"a1 b1 c1 d1 e1", "a2 b3 c4 d5 e6"}, []string{"2", "3", "4"}, false},
		{"one of three", "a1 b1 c1", "a b c", []string{"a1 b1 c1", "a2 b1 c1"}, nil, true},
	} {
		var looks []Servers
		for _, look := range test.looks {
			looks = append(looks, servers(look))
		}
		ids, survives := servers(test.known).Restarted(strings.Fields(test.holders), looks)
		if !slices.Equal(ids, test.ids) || survives != test.survives {
			t.Errorf("%s: %q, survives %t", test.name, ids, survives)
		}
	}
}

func TestServers_AwaitsUnknownStarts(t *testing.T) {
	s := servers("a1 b?2")
	for where, want := range map[string]bool{"a1": false, "a2": true, "b2": false, "b1": true, "c1": false} {
		if got := s.Awaits(where[:1], where[1:]); got != want {
			t.Errorf("%s is waited for: %t", where, got)
		}
	}
}

func TestServers_FromMetadata(t *testing.T) {
	want := Servers{"a": "1", `b",=:`: "2"}
	got, err := Parse(want.Format())
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if got, err := Parse(""); got != nil || err != nil {
		t.Errorf("nothing is %v, %v", got, err)
	}
	for _, bad := range []string{"x", "[]", `{"a":1}`} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
	many := Servers{}
	for n := range maxServers {
		many[fmt.Sprint("old", n)] = "1"
	}
	if got := many.with(want); !maps.Equal(got, want) {
		t.Errorf("of too many there are %d left", len(got))
	}
}

func FuzzServers(f *testing.F) {
	f.Add(`{"a":"1","b":"2"}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(s.Format())
		if err != nil || !maps.Equal(s, again) {
			t.Errorf("%q is %v, and then %v, %v", text, s, again, err)
		}
	})
}
