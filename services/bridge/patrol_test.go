package bridge

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/host"
	"rejoin/shared/backend"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// A process that was paused, or that lost its connection to NATS, has not heard the edges meanwhile: it cancels no call
// for that.
func TestHearing(t *testing.T) {
	g := hearing{connection: 1}
	for i, tt := range []struct {
		pauses     int
		connection uint64
		heard      bool
	}{
		{0, 1, true},
		{0, 0, false},
		{0, 0, false},
		{0, 2, false},
		{0, 2, true},
		{1, 2, false},
		{1, 2, true},
		{3, 2, false},
		{3, 2, true},
		{3, 3, false},
		{3, 3, true},
	} {
		if heard := g.look(tt.pauses, tt.connection); heard != tt.heard {
			t.Errorf("look %d: the edges were heard %t", i, heard)
		}
	}
}

// A NATS server that is frozen keeps its connections.
func TestHearing_NATSIsFrozen(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	var frozen atomic.Pointer[chan struct{}]
	s.options = []nats.Option{nats.SetCustomDialer(&natstest.Link{After: func([]byte) {
		if thaw := frozen.Load(); thaw != nil {
			<-*thaw
		}
	}})}
	in := s.start(t, testConfig(up.URL))
	number := in.connection(waittest.Context(t))
	if number == 0 {
		t.Fatal("there is no connection")
	}
	thaw := make(chan struct{})
	frozen.Store(&thaw)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if n := in.connection(ctx); n != 0 {
		t.Errorf("connection %d answers", n)
	}
	frozen.Store(nil)
	close(thaw)
	if n := in.connection(waittest.Context(t)); n != number {
		t.Errorf("the connection has the number %d, and not %d", n, number)
	}
}

// A NATS server that is cut off from the others of its cluster answers, but passes on no message of the edges.
func TestHearing_NATSIsCutOff(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	ctx := waittest.Context(t)
	open := func(url string) *backend.Backend {
		t.Helper()
		b := must.Value(backend.Create(ctx, backend.Config{NATSURL: url}, t.Name(), eventlog.Settings{Partitions: 1, Replicas: 3}, slog.New(slog.DiscardHandler)))(t)
		t.Cleanup(b.Close)
		return b
	}
	state := must.Value(open(c.URL()).Log.Look(ctx, 0))(t)
	at := slices.IndexFunc(c.Servers, func(s *natstest.Server) bool { return s.Name() != state.Leader })
	s := &Service{host: &host.Host{Backend: open(c.Servers[at].URL())}}
	if s.connection(ctx) == 0 {
		t.Fatal("there is no connection")
	}
	for i, other := range c.Servers {
		if i != at {
			other.Stop()
		}
	}
	waittest.Until(t, "the bridge hears nobody", func() bool { // the server may have become the leader for a moment
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return s.connection(brief) == 0
	})
	if !s.host.Backend.Conn.IsConnected() {
		t.Error("its server is gone")
	}
}
