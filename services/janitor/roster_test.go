package janitor

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"testing"
	"time"

	"rejoin/services/janitor/follow"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// written waits until the metadata of all partitions names the present servers.
func (r *running) written(t *testing.T, now cluster.Servers) {
	t.Helper()
	js := natstest.JetStream(t, r.b.Conn)
	for p := range r.b.Log.Settings().Partitions {
		waittest.NoError(t, func() error {
			stream, err := js.Stream(t.Context(), fmt.Sprint("MCP_", p))
			if err != nil {
				return err
			}
			var got cluster.Servers
			if err := json.Unmarshal([]byte(stream.CachedInfo().Config.Metadata["rejoin.servers"]), &got); err != nil {
				return err
			}
			if !maps.Equal(got, now) {
				return fmt.Errorf("partition %d says %v, and there are %v", p, got, now)
			}
			return nil
		})
	}
}

// sees waits until a janitor sees all servers of the cluster together, and returns them.
func (r *running) sees(t *testing.T, others cluster.Servers, anew string) cluster.Servers {
	t.Helper()
	var now cluster.Servers
	waittest.NoError(t, func() error {
		looks, _ := r.roster.All()
		if len(looks) == 0 {
			return fmt.Errorf("it has not looked")
		}
		now = looks[len(looks)-1]
		if len(now) != 3 || others[anew] != "" && now[anew] == others[anew] {
			return fmt.Errorf("it sees %v", now)
		}
		return nil
	})
	return now
}

// It does not matter which janitor acts, and to which server it is connected.
func TestGeneration_RollingRestart(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	settings := eventlog.Settings{Partitions: 2, Replicas: 3}
	all := []*running{
		beginAt(t, c.URL(), settings, short(idle())),
		beginAt(t, c.URL(), settings, short(idle())),
	}
	now := all[0].sees(t, nil, "")
	all[0].written(t, now)
	log := all[0].b.Log
	for i, srv := range c.Servers {
		srv.Stop()
		if i == 0 {
			var missing eventlog.State
			var looked <-chan struct{}
			waittest.Until(t, "a replica is missing", func() bool {
				missing, looked = log.State(0)
				return missing.Current < 3
			})
			<-looked
			if later, _ := log.State(0); later.Current >= 3 || !later.Whole.Equal(missing.Whole) {
				t.Errorf("with a replica missing it was whole at %s, then at %s", missing.Whole, later.Whole)
			}
		}
		srv.Start()
		c.WaitCurrent()
		before := now
		for _, r := range all {
			now = r.sees(t, before, srv.Name())
		}
	}
	all[1].written(t, now)
	for p := range settings.Partitions {
		state, err := all[0].b.Log.Look(t.Context(), p)
		if err != nil || len(state.Generations) != 1 {
			t.Errorf("partition %d has the generations %v, %v", p, state.Generations, err)
		}
	}
}

func TestGeneration_AllServersRestart(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	r := beginAt(t, c.URL(), eventlog.Settings{Partitions: 2, Replicas: 3}, short(idle()))
	before := r.sees(t, nil, "")
	r.written(t, before)
	events := r.publish(t, "s", "t", 3)
	for _, srv := range c.Servers {
		srv.Stop()
	}
	for _, srv := range c.Servers {
		srv.Start()
	}
	for p := range 2 {
		r.shows(t, p, func(s eventlog.State) bool { return len(s.Generations) == 2 })
	}
	// It counts when it has heard of it, if its question was answered in time.
	if got := r.metric(t, "generations_begun_total"); got > 2 {
		t.Errorf("%v generations are counted", got)
	}
	state, err := r.b.Log.Look(t.Context(), r.b.Log.Partition("s"))
	if err != nil || state.Generation().Start != events[2]+1 {
		t.Errorf("it begins at %d, after %d; %v", state.Generation().Start, events[2], err)
	}
	c.WaitCurrent()
	r.written(t, r.sees(t, before, c.Servers[0].Name()))
}

// The servers between two looks are unknown when these are far apart, and equal looks
// are kept once.
func TestGeneration_TimeUnobserved(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	log := beginAt(t, c.URL(), eventlog.Settings{Partitions: 1}, short(idle())).b.Log
	var r *follow.Roster
	waittest.NoError(t, func() error { // a look takes as long as the machine pauses, and a late server is not in it
		r = follow.NewRoster(log, slog.New(slog.DiscardHandler))
		looks := func(want int) error {
			if err := r.Look(t.Context()); err != nil {
				return err
			}
			if all, _ := r.All(); len(all) != want || len(all[want-2]) != 0 || len(all[want-1]) != 3 {
				return fmt.Errorf("it has seen %v", all)
			}
			return nil
		}
		if err := looks(2); err != nil {
			return err
		}
		r.Last = time.Now()
		if err := looks(2); err != nil {
			return err
		}
		r.Last = time.Now().Add(-time.Hour)
		return looks(4)
	})
	for range 2 * follow.MaxRoster {
		r.Note(nil)
		r.Note(cluster.Servers{"a": "1"})
	}
	if looks, _ := r.All(); len(looks) != follow.MaxRoster {
		t.Errorf("%d looks are kept", len(looks))
	}
}
