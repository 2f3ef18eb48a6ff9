package janitor

import (
	"context"
	"sync"

	"rejoin/services/janitor/follow"
)

// keeping keeps the ledger of a partition while it is wanted: from the first term of this janitor
// until another one acts. A connection that is lost for a moment costs no ledger.
type keeping struct {
	*follow.Partition
	mu      sync.Mutex
	wanted  bool
	changed chan struct{} // closed and replaced with wanted
}

func newKeeping(p *follow.Partition) *keeping {
	return &keeping{Partition: p, changed: make(chan struct{})}
}

// want sets whether the ledger is to be kept. It does not wait.
func (k *keeping) want(wanted bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.wanted != wanted {
		k.wanted = wanted
		close(k.changed)
		k.changed = make(chan struct{})
	}
}

func (k *keeping) state() (wanted bool, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wanted, k.changed
}

// run keeps it until ctx ends.
func (k *keeping) run(ctx context.Context) {
	for ctx.Err() == nil {
		wanted, changed := k.state()
		kept, end := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if wanted {
			wg.Go(func() { k.Keep(kept) })
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
		end()
		wg.Wait()
	}
}
