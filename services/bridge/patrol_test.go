package bridge

import "testing"

// A process that was paused has not heard the edges meanwhile, and no call is cancelled for that.
func TestHearing(t *testing.T) {
	var g hearing
	for i, tt := range []struct {
		pauses           int
		connected, heard bool
	}{
		{0, true, true}, {0, false, false}, {0, true, true}, {1, true, false}, {1, true, true}, {3, true, false}, {3, true, true},
	} {
		if heard := g.look(tt.pauses, tt.connected); heard != tt.heard {
			t.Errorf("look %d: the edges were heard %t", i, heard)
		}
	}
}
