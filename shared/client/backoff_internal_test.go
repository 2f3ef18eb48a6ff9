package client

import (
	"math"
	"testing"
)

func TestBackoff_IsBounded(t *testing.T) {
	b := backoff{first: 100, most: 3000}
	for i := range 100 {
		least := min(100<<min(i, 30), 2000)
		if got := int(b.next(0)); got < least || got > least*3/2 {
			t.Fatalf("wait %d is %d, want %d to %d", i, got, least, least*3/2)
		}
	}
	b.reset()
	if got := b.next(500); got < 500 || got > 750 {
		t.Errorf("the wait is %d, want 500 to 750", got)
	}
	if got := b.next(1e9); got < 2000 || got > 3000 {
		t.Errorf("the wait is %d, want 2000 to 3000", got)
	}
	b = backoff{first: 100, most: math.MaxInt64}
	for range 100 {
		if got := b.next(0); got < 100 {
			t.Fatalf("the wait is %d, want 100 or more", got)
		}
	}
}
