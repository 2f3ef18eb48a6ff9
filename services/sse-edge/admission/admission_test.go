package admission

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestAdmission(t *testing.T) {
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	a := New(4, 2, 3, func(string) bool { return true })
	for i, step := range []struct {
		visit   Visit
		refused string
	}{
		{Visit{Sessions: []string{"s"}, Address: one}, ""},
		{Visit{Sessions: []string{"s"}, Address: one}, ""},
		{Visit{Sessions: []string{"s"}, Address: two}, "session_limit"},
		{Visit{Sessions: []string{"t"}, Address: one}, ""},
		{Visit{Sessions: []string{"t"}, Address: one}, "address_limit"},
		{Visit{Sessions: []string{"u"}, Address: two}, ""},
		{Visit{Sessions: []string{"v"}, Address: two}, "limit"},
	} {
		if refused := a.Enter(step.visit); refused != step.refused {
			t.Errorf("step %d: %q, want %q", i, refused, step.refused)
		}
	}
	for _, v := range []Visit{{Sessions: []string{"s"}, Address: one}, {Sessions: []string{"s"}, Address: one}, {Sessions: []string{"t"}, Address: one}, {Sessions: []string{"u"}, Address: two}} {
		a.Leave(v)
	}
	if a.places.Used() != 0 || len(a.sessions) != 0 || len(a.addresses) != 0 {
		t.Errorf("all have left, and %d, %v, %v are counted", a.places.Used(), a.sessions, a.addresses)
	}
	a.Close()
	if refused := a.Enter(Visit{Sessions: []string{"s"}, Address: one}); refused != "drain" {
		t.Errorf("refused with %q after the close", refused)
	}
	a.inside.Wait()
}

// One client leaves the last quarter of all places to others, and one that has all networks of
// an IPv6 /48 has four times as many as one of them.
func TestAdmission_Shares(t *testing.T) {
	newcomers := func(string) bool { return true }
	a := New(8, 100, 100, newcomers)
	address := netip.MustParseAddr("192.0.2.1")
	for i, want := range []string{"", "", "", "", "", "", "share_limit"} {
		if refused := a.Enter(Visit{[]string{"s"}, address, "mallory"}); refused != want {
			t.Errorf("%d: %q, want %q", i, refused, want)
		}
	}
	for i, want := range []string{"", "", "limit"} {
		if refused := a.Enter(Visit{[]string{"s"}, address, "alice"}); refused != want {
			t.Errorf("%d of another: %q, want %q", i, refused, want)
		}
	}

	a = New(100, 100, 2, newcomers)
	var inside []Visit
	for i := range 5 {
		for range 2 {
			v := Visit{Sessions: []string{"s"}, Address: netip.MustParseAddr(fmt.Sprintf("2001:db8:1:%x::", i))}
			refused := a.Enter(v)
			if want := i >= 4; (refused == "address_limit") != want {
				t.Errorf("network %d: %q", i, refused)
			}
			if refused == "" {
				inside = append(inside, v)
			}
		}
	}
	if refused := a.Enter(Visit{Sessions: []string{"s"}, Address: netip.MustParseAddr("2001:db8:2::")}); refused != "" {
		t.Errorf("another network: %q", refused)
	}
	for _, v := range inside {
		a.Leave(v)
	}
	if len(a.networks) != 1 || len(a.addresses) != 1 || a.places.Used() != 1 {
		t.Errorf("%v, %v, %d are left", a.networks, a.addresses, a.places.Used())
	}
}
