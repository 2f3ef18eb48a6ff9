package quota_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"

	"rejoin/shared/leaktest"
	"rejoin/shared/quota"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestPool_Shares(t *testing.T) {
	p := quota.NewPool(100)
	take := func(client string, n int64, want bool) {
		t.Helper()
		if got := p.Take(client, n); got != want {
			t.Errorf("%q takes %d while %d are used: %t", client, n, p.Used(), got)
		}
	}
	take("greedy", 75, true) // as long as enough is free, one client may have most of it
	take("greedy", 1, false)
	take("modest", 25, true)
	take("other", 1, false)
	p.Give("greedy", 10)
	take("greedy", 1, false)
	take("modest", 1, false)
	take("other", 10, true)
	p.Give("modest", 25)
	p.Give("other", 10)
	take("", 35, true) // no client in particular
	take("", 1, false)
	p.Give("", 35)
	p.Give("greedy", 65)
	if p.Used() != 0 {
		t.Errorf("%d are used", p.Used())
	}
	take("large", 101, false)
}

func TestPool_Each(t *testing.T) {
	p := quota.NewPool(100)
	p.Each(10)
	if !p.Take("a", 10) || p.Take("a", 1) || !p.Take("b", 10) || !p.Take("", 50) {
		t.Error("a client may hold 10, and who is no client any number")
	}
}

// A take of 0 succeeds always, also for a client that has too much.
func TestPool_TakeNothing(t *testing.T) {
	p := quota.NewPool(8)
	if !p.Take("a", 6) || !p.Take("b", 2) || !p.Take("a", 0) || p.Wait(t.Context(), "a", 0) != nil || p.Used() != 8 {
		t.Errorf("nothing cannot be taken of %d", p.Used())
	}
}

func TestPool_Nil(t *testing.T) {
	p := quota.NewPool(0)
	if !p.Take("a", 1<<40) || p.Wait(t.Context(), "a", 1<<40) != nil || p.Used() != 0 || p.Capacity() != 0 {
		t.Error("a nil pool bounds something")
	}
	p.Give("a", 1)
}

func TestPool_Wait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := quota.NewPool(10)
		p.Take("a", 8)
		got := make(chan error, 1)
		go func() { got <- p.Wait(t.Context(), "b", 7) }()
		synctest.Wait()
		p.Give("a", 2)
		synctest.Wait()
		if len(got) > 0 {
			t.Fatal("it does not wait")
		}
		p.Give("a", 6)
		if err := <-got; err != nil || p.Used() != 7 {
			t.Errorf("%v, and %d are used", err, p.Used())
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { got <- p.Wait(ctx, "b", 4) }()
		synctest.Wait()
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) || p.Used() != 7 {
			t.Errorf("%v, and %d are used", err, p.Used())
		}
	})
}

func TestPool_WaitersTakeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := quota.NewPool(8)
		if !p.Take("busy", 6) || !p.Take("other", 2) {
			t.Fatal("it is full already")
		}
		order := make(chan string, 5)
		var waiting sync.WaitGroup
		for _, client := range []string{"busy", "first", "busy", "second", "third"} { // busy has its share
			waiting.Go(func() {
				if err := p.Wait(t.Context(), client, 1); err != nil {
					t.Error(err)
				}
				order <- client
			})
			synctest.Wait()
		}
		for range 3 {
			p.Give("busy", 1)
			synctest.Wait()
		}
		for _, want := range []string{"first", "second", "third"} {
			if got := <-order; got != want {
				t.Errorf("%s took before %s", got, want)
			}
		}
		p.Give("busy", 3)
		p.Give("other", 2)
		waiting.Wait()
		if p.Used() != 5 {
			t.Errorf("%d are taken", p.Used())
		}
	})
}

// A client that has more waiters than others has no more turns.
func TestPool_ClientsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := quota.NewPool(40)
		p.Take("", 40)
		order := make(chan string, 6)
		for i, client := range []string{"a", "a", "a", "b", "c", "a"} {
			go func() {
				if err := p.Wait(t.Context(), client, 1); err == nil {
					order <- fmt.Sprint(client, i)
				}
			}()
			synctest.Wait()
		}
		for _, want := range []string{"a0", "b3", "c4", "a1", "a2", "a5"} {
			p.Give("", 1)
			if got := <-order; got != want {
				t.Errorf("%s took before %s", got, want)
			}
		}
	})
}

// A waiter that gives up holds up no smaller one after it.
func TestPool_FirstWaiterGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := quota.NewPool(8)
		p.Take("", 8)
		ctx, cancel := context.WithCancel(t.Context())
		large, small := make(chan error, 1), make(chan error, 1)
		go func() { large <- p.Wait(ctx, "a", 4) }()
		synctest.Wait()
		go func() { small <- p.Wait(t.Context(), "a", 2) }()
		synctest.Wait()
		p.Give("", 3)
		synctest.Wait()
		if len(small) > 0 {
			t.Error("a client's waiters do not take in their order")
		}
		cancel()
		if err := <-large; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := <-small; err != nil || p.Used() != 7 {
			t.Errorf("%v, and %d are used", err, p.Used())
		}
	})
}

// Others take and give back while one client has many waiters.
func BenchmarkPool_ManyWaiters(b *testing.B) {
	p := quota.NewPool(4096)
	p.Take("busy", 3072)
	ctx, cancel := context.WithCancel(b.Context())
	var waiting sync.WaitGroup
	for range 10_000 {
		waiting.Go(func() { _ = p.Wait(ctx, "busy", 1) })
	}
	for b.Loop() {
		p.Take("other", 1)
		p.Give("other", 1)
	}
	cancel()
	waiting.Wait()
}

// With any takes and gives, no more than the capacity is used, and a client that gets a part of
// the last quarter holds no more than a quarter.
func TestPool_Property(t *testing.T) {
	const capacity, clients = 1000, 6
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p := quota.NewPool(capacity)
		held := make([]int64, clients)
		var used int64
		for range 400 {
			who, n := rng.IntN(clients), rng.Int64N(300)
			name := fmt.Sprint("client ", who)
			if rng.IntN(3) == 0 {
				n = min(n, held[who])
				p.Give(name, n)
				held[who], used = held[who]-n, used-n
				continue
			}
			want := n == 0 || used+n <= capacity && (used+n <= capacity*3/4 || held[who]+n <= capacity/4)
			if got := p.Take(name, n); got != want {
				t.Fatalf("seed %d: taking %d with %d of %d used: %t", seed, n, held[who], used, got)
			}
			if want {
				held[who], used = held[who]+n, used+n
			}
			if p.Used() != used {
				t.Fatalf("seed %d: %d are used, want %d", seed, p.Used(), used)
			}
		}
	}
}

func TestPool_Concurrent(t *testing.T) {
	p := quota.NewPool(64)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range int64(200) {
				if err := p.Wait(t.Context(), fmt.Sprint(i), n%16+1); err != nil {
					t.Error(err)
					return
				}
				p.Give(fmt.Sprint(i), n%16+1)
			}
		})
	}
	wg.Wait()
	if p.Used() != 0 {
		t.Errorf("%d are used", p.Used())
	}
}

func TestPart(t *testing.T) {
	p := quota.NewPool(10)
	part := p.Part("a")
	if !part.Grow(4) || !part.Grow(3) || part.Grow(4) || p.Used() != 7 {
		t.Errorf("%d are used", p.Used())
	}
	if !part.Resize(5) || p.Used() != 5 {
		t.Errorf("%d are used", p.Used())
	}
	if err := part.Wait(t.Context(), 7); err != nil || p.Used() != 7 { // with its previous part
		t.Errorf("after a wait %d are taken, %v", p.Used(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := part.Wait(ctx, 11); !errors.Is(err, context.Canceled) || p.Used() != 0 {
		t.Errorf("after a wait in vain %d are taken, %v", p.Used(), err)
	}
	if !part.Resize(8) || part.Resize(9) || p.Used() != 8 || !part.Resize(3) || p.Used() != 3 {
		t.Errorf("%d are used", p.Used())
	}
	part.Release()
	part.Release()
	if p.Used() != 0 {
		t.Errorf("%d are used", p.Used())
	}
}
