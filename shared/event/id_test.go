package event_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rejoin/shared/event"
	"rejoin/shared/must"
)

func TestEventIDText(t *testing.T) {
	for text, id := range map[string]event.ID{
		"tools_a1b2c3d_42":    {Stream: "tools", Tag: "a1b2c3d", Sequence: 42},
		"*_0000000_0":         {Tag: "0000000"},
		"=2A_zzzzzzz_1":       {Stream: "*", Tag: "zzzzzzz", Sequence: 1},
		"a_b_c_a1b2c3d_7":     {Stream: "a_b_c", Tag: "a1b2c3d", Sequence: 7},
		"_______a1b2c3d_7":    {Stream: "______", Tag: "a1b2c3d", Sequence: 7},
		"a=2Eb_a1b2c3d_10000": {Stream: "a.b", Tag: "a1b2c3d", Sequence: 10000},
	} {
		if got := id.String(); got != text {
			t.Errorf("%+v.String() = %q, want %q", id, got, text)
		}
		if got, err := event.ParseID(text); err != nil || got != id {
			t.Errorf("ParseID(%q) = %+v, %v, want %+v", text, got, err, id)
		}
	}
	if got, err := event.ParseID("tools_a1b2c3d_42.7"); err != nil || got.Sequence != 42 {
		t.Errorf("a suffix after the sequence must be ignored: %+v, %v", got, err)
	}
	for _, text := range []string{
		"", "_", "__", "42", "tools_42", "tools_a1b2c3d_", "tools_a1b2c3d_x", "tools_a1b2c3d_-1", "tools_a1b2c3d_042",
		"tools_a1b2c3d_42.", "tools_a1b2c3d_42.x", "tools_a1b2c3d_42.1.2", "tools_A1B2C3D_42", "tools_a1b2c3_42",
		"tools_a1b2c3d4_42", "_a1b2c3d_42", "a.b_a1b2c3d_42", "**_a1b2c3d_42", "tools_a1b2c3d_99999999999999999999",
		"tools_a1b2c3d_42 ", "tools_a1b2c3d_+42", strings.Repeat("x", 600) + "_a1b2c3d_1", "=2a_a1b2c3d_1",
	} {
		if id, err := event.ParseID(text); !errors.Is(err, event.ErrInvalidID) {
			t.Errorf("ParseID(%q) = %+v, %v, want ErrInvalidID", text, id, err)
		}
	}
}

func TestResolve(t *testing.T) {
	gens := []event.Generation{{ID: "g1", Start: 1}, {ID: "g2", Start: 100}, {ID: "g3", Start: 90}}
	place := event.TagParts{Origin: "g1", Session: "s", Life: "i1", Stream: "tools"}
	made := func(change func(*event.TagParts), sequence uint64) event.ID {
		p := place
		p.Generation = "g3"
		change(&p)
		return event.ID{Stream: p.Stream, Tag: p.Tag(), Sequence: sequence}
	}
	generation := func(g string) func(*event.TagParts) { return func(p *event.TagParts) { p.Generation = g } }
	for _, tt := range []struct {
		name   string
		id     event.ID
		want   event.Verdict
		common uint64
	}{
		{"current", made(func(*event.TagParts) {}, 500), event.Good, 0},
		{"beyond_everything", made(func(*event.TagParts) {}, math.MaxUint64), event.Good, 0},
		{"before_the_session_was_opened", made(func(p *event.TagParts) { p.Life = "" }, 500), event.Good, 0},
		{"older_generation_before_every_later_start", made(generation("g1"), 89), event.Good, 0},
		{"older_generation_at_a_later_start", made(generation("g1"), 90), event.RolledBack, 89},
		{"middle_generation_at_the_next_start", made(generation("g2"), 101), event.RolledBack, 89},
		{"lost_generation_before_any_restart", made(generation("lost"), 89), event.MaybeRolledBack, 89},
		{"lost_generation_after_a_restart", made(generation("lost"), 95), event.RolledBack, 89},
		{"another_session", made(func(p *event.TagParts) { p.Session = "t" }, 10), event.Unknown, 0},
		{"another_life", made(func(p *event.TagParts) { p.Life = "i0" }, 10), event.Unknown, 0},
		{"another_stream", made(func(p *event.TagParts) { p.Stream = "other" }, 10), event.Unknown, 0},
		{"the_flow_of_the_session", made(func(p *event.TagParts) { p.Stream = "" }, 10), event.Unknown, 0},
		{"another_log", made(func(p *event.TagParts) { p.Origin, p.Generation = "x1", "x1" }, 10), event.Unknown, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, common := event.Resolve(tt.id, place, gens)
			if got != tt.want || common != tt.common {
				t.Errorf("Resolve = %v, %d, want %v, %d", got, common, tt.want, tt.common)
			}
		})
	}
}

func TestFork(t *testing.T) {
	g := func(start uint64, id string) event.Generation { return event.Generation{ID: id, Start: start} }
	for _, tt := range []struct {
		name          string
		before, after []event.Generation
		want          uint64
	}{
		{"nothing_happened", []event.Generation{g(1, "a"), g(5, "b")}, []event.Generation{g(1, "a"), g(5, "b")}, math.MaxUint64},
		{"one_was_begun", []event.Generation{g(1, "a")}, []event.Generation{g(1, "a"), g(5, "b")}, 4},
		{"two_were_begun", []event.Generation{g(1, "a")}, []event.Generation{g(1, "a"), g(9, "b"), g(7, "c")}, 6},
		{"one_was_lost_and_one_begun", []event.Generation{g(1, "a"), g(5, "b")}, []event.Generation{g(1, "a"), g(3, "c")}, 2},
		{"one_was_lost", []event.Generation{g(1, "a"), g(5, "b")}, []event.Generation{g(1, "a")}, 4},
		{"the_oldest_fell_off_the_list", []event.Generation{g(1, "a"), g(5, "b")}, []event.Generation{g(5, "b"), g(8, "c")}, 7},
		{"another_log", []event.Generation{g(1, "a")}, []event.Generation{g(1, "x")}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := event.Fork(tt.before, tt.after); got != tt.want {
				t.Errorf("Fork = %d, want %d", got, tt.want)
			}
		})
	}
}

// A stream that is named like the flow of a session must not be taken for it.
func TestTag_SessionAndStreamNamedStar(t *testing.T) {
	flow := event.TagParts{Origin: "g", Generation: "g", Session: "s"}
	star := flow
	star.Stream = "*"
	if flow.Tag() == star.Tag() {
		t.Error("the tags are the same")
	}
	if a, b := (event.ID{Tag: flow.Tag()}).String(), (event.ID{Stream: "*", Tag: flow.Tag()}).String(); a == b {
		t.Errorf("the texts are the same: %s", a)
	}
}

// Length prefixes keep fields apart that would read the same when joined.
func TestTag_ShiftedFields(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z]{2,20}`).Draw(t, "name")
		cut := rapid.IntRange(1, len(name)-1).Draw(t, "cut")
		a := event.TagParts{Origin: "g", Generation: "g", Session: name[:cut], Stream: name[cut:]}
		b := event.TagParts{Origin: "g", Generation: "g", Session: name, Stream: "x"}
		if a.Tag() == b.Tag() {
			t.Fatalf("%+v and %+v have the same tag", a, b)
		}
	})
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"tools_a1b2c3d_42", "*_0000000_0", "=2A_zzzzzzz_1.5", "__", "a_b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := event.ParseID(text)
		if err != nil {
			return
		}
		again, err := event.ParseID(id.String())
		if err != nil || again != id {
			t.Fatalf("ParseID(%q) = %+v, which prints as %q and reads back as %+v, %v", text, id, id.String(), again, err)
		}
		if bare, _, _ := strings.Cut(text, "."); bare != id.String() && text != id.String() {
			t.Fatalf("ParseID(%q) prints as %q", text, id.String())
		}
	})
}

func BenchmarkParseID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		must.Value(event.ParseID("tools_a1b2c3d_1234567"))(b)
	}
}
