package lease

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// deaf is a server whose connections lose what they receive, once deafened.
type deaf struct {
	*natstest.Server
	lost atomic.Bool
}

func (d *deaf) InProcessConn() (net.Conn, error) {
	conn, err := d.Server.InProcessConn()
	return deafConn{conn, d}, err
}

type deafConn struct {
	net.Conn
	*deaf
}

func (c deafConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.lost.Load() {
			return n, err
		}
	}
}

// compete starts a janitor that competes for partitions until the test ends.
func compete(t *testing.T, nc *nats.Conn, length time.Duration, partitions int) *Leases {
	s := must.Value(New(length, nc, partitions, 1, time.Now, slog.New(slog.DiscardHandler)))(t)
	s.sharing.returning = time.Hour
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, func(ctx context.Context, _ int) error {
			<-ctx.Done()
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func holds(s *Leases, n int) func() bool {
	return func() bool {
		own, _ := s.Holders()
		return len(own) == n
	}
}

func TestLeases_DoWithoutTerm(t *testing.T) {
	srv, failed := natstest.StartParallel(t), errors.New("failed")
	first := compete(t, srv.Connect(), time.Minute, 1)
	waittest.Until(t, "the first one acts", holds(first, 1))
	second := compete(t, srv.Connect(), time.Minute, 1)
	for s, acts := range map[*Leases]bool{first: true, second: false} {
		called := false
		did, err := s.Do(0, func(context.Context) error { called = true; return failed })
		if did != acts || called != acts || errors.Is(err, failed) != acts {
			t.Errorf("one that acts, %t: it was done, %t; it was called, %t; %v", acts, did, called, err)
		}
	}
}

// A lease of its own that a janitor learns of before the term begins is not another one's.
func TestHolders_HeardBeforeTheTerm(t *testing.T) {
	s := must.Value(New(time.Minute, natstest.StartParallel(t).Connect(), 2, 1, time.Now, slog.New(slog.DiscardHandler)))(t)
	s.sharing.held(0, s.id, s.now())
	s.sharing.held(1, "another", s.now())
	if own, vacant := s.Holders(); len(own) != 0 || vacant != 1 {
		t.Errorf("it acts for %v, and %d are vacant", own, vacant)
	}
}

// A janitor that gets no answers, while its requests arrive, keeps neither partitions nor a share
// of them from the others.
func TestLeases_AnswersAreLost(t *testing.T) {
	natstest.InVirtualTime(t, func(t *testing.T) {
		const partitions = 4
		srv := natstest.StartInMemory(t, t.TempDir())
		network := &deaf{Server: srv}
		hears := compete(t, srv.Connect(), time.Second, partitions)
		cut := compete(t, srv.Connect(nats.InProcessServer(network)), time.Second, partitions)
		cut.mu.Lock()
		cut.sharing.returning = returning // the other one takes all meanwhile
		cut.mu.Unlock()
		waittest.Until(t, "they share", func() bool { return holds(hears, 2)() && holds(cut, 2)() })
		network.lost.Store(true)
		waittest.Until(t, "one holds all", holds(hears, partitions))
		network.lost.Store(false)
		waittest.Until(t, "they share again", func() bool { return holds(hears, 2)() && holds(cut, 2)() })
	})
}

// After a restart of NATS each janitor acts for the partitions of before, whichever connects first.
func TestLeases_AfterServerRestart(t *testing.T) {
	natstest.InVirtualTime(t, func(t *testing.T) {
		const partitions = 4
		srv := natstest.StartInMemory(t, t.TempDir())
		all := []*Leases{compete(t, srv.Connect(), 3*time.Second, partitions), compete(t, srv.Connect(), 3*time.Second, partitions)}
		for range 2 {
			waittest.Until(t, "they share", func() bool { return holds(all[0], 2)() && holds(all[1], 2)() })
			srv.Stop()
			kept := make([][]bool, len(all))
			for i, s := range all {
				waittest.Until(t, "it has lost its leases", holds(s, 0))
				s.mu.Lock()
				kept[i] = slices.Clone(s.sharing.kept)
				s.mu.Unlock()
			}
			srv.Start()
			for p := range partitions {
				for i, s := range all {
					if kept[i][p] {
						waittest.Until(t, "it acts again", func() bool { return s.Acts(p) })
					}
				}
			}
		}
	})
}

// A bucket that somebody deletes is made again when its leases are over. In a cluster it has no leader for as long when
// the server that led it dies. Then each janitor acts for the partitions of before, whichever gets the first answer.
func TestLeases_AfterABucketWithoutAnswers(t *testing.T) {
	natstest.InVirtualTime(t, func(t *testing.T) {
		const partitions = 4
		srv := natstest.StartInMemory(t, t.TempDir())
		all := []*Leases{compete(t, srv.Connect(), time.Second, partitions), compete(t, srv.Connect(), time.Second, partitions)}
		js := natstest.JetStream(t, srv.Connect())
		for range 2 {
			waittest.Until(t, "they share", func() bool { return holds(all[0], 2)() && holds(all[1], 2)() })
			must.NoError(t, js.DeleteStream(t.Context(), "KV_"+Bucket))
			kept := make([][]bool, len(all))
			for i, s := range all {
				waittest.Until(t, "it has lost its leases, and has heard of no other janitor for a lease", func() bool {
					s.mu.Lock()
					defer s.mu.Unlock()
					s.sharing.expire(s.now())
					kept[i] = slices.Clone(s.sharing.kept)
					return len(s.mine()) == 0 && len(s.sharing.peers) == 0
				})
			}
			for p := range partitions {
				for i, s := range all {
					if kept[i][p] {
						waittest.Until(t, "it acts again", func() bool { return s.Acts(p) })
					}
				}
			}
		}
	})
}
