package client

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"rejoin/shared/must"
)

func TestBuffer_FirstInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBuffer(10, 100)
		must.NoError(t, b.take(t.Context(), 60))
		var order []int
		for _, size := range []int{80, 30} {
			go func() {
				if err := b.take(t.Context(), size); err != nil {
					t.Error(err)
				}
				order = append(order, size)
			}()
			synctest.Wait()
		}
		if len(order) != 0 {
			t.Fatalf("%v overtook a larger message", order)
		}
		b.free(1, 60)
		synctest.Wait()
		b.free(1, 80)
		synctest.Wait()
		if !slices.Equal(order, []int{80, 30}) {
			t.Errorf("the order is %v", order)
		}
	})
}

func TestBuffer_WaiterGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBuffer(10, 100)
		must.NoError(t, b.take(t.Context(), 60))
		ctx, cancel := context.WithCancel(t.Context())
		large, small := make(chan error, 1), make(chan error, 1)
		go func() { large <- b.take(ctx, 80) }()
		synctest.Wait()
		go func() { small <- b.take(t.Context(), 40) }()
		synctest.Wait()
		cancel()
		if err := <-large; !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
		must.NoError(t, <-small)
		b.free(2, 100)
		if b.messages != 10 || b.bytes != 100 {
			t.Errorf("%d messages and %d bytes are free", b.messages, b.bytes)
		}
	})
}

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
}
