package edge

import (
	"context"
	"errors"
	"testing"

	"rejoin/shared/eventlog"
)

func TestBackfillsTakeTurns(t *testing.T) {
	turns := make(chan struct{}, 1)
	first := &partition{window: emptyWindow(1 << 10), turns: turns}
	second := &partition{number: 1, window: emptyWindow(1 << 10), turns: turns}
	begin := func(p *partition) error {
		_, err := p.start(t.Context(), eventlog.State{Birth: "b"})
		return err
	}
	if err := begin(first); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := second.start(ended, eventlog.State{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("a second one began before the first had ended: %v", err)
	}
	// An attempt that begins anew has lost its turn, and needs none.
	if err := begin(first); err != nil {
		t.Fatal(err)
	}
	if err := begin(second); err != nil {
		t.Fatal(err)
	}
	second.endTurn()
	second.endTurn()
	if len(turns) != 0 {
		t.Errorf("%d turns are still taken", len(turns))
	}
}
