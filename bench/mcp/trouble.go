package mcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/bench/measure"
	"rejoin/bench/system"
)

const (
	mcpSessions = 1000
	mcpSteps    = 50
	mcpOpening  = 32 // sessions that are opened at a time
	// mcpAway is for how long the bridge has no NATS.
	mcpAway = 2 * time.Second
)

// Sessions counts the messages that arrive of calls that report steps, while one of two
// edges is killed and started again, and then the bridge loses NATS for a while.
func Sessions(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var f measure.Figures
	w, err := startMCPWorld(ctx, p)
	if err != nil {
		return f, err
	}
	defer w.close()
	calls, err := w.open(ctx)
	if err != nil {
		return f, err
	}
	defer calls.http.CloseIdleConnections()
	begun := time.Now()
	calls.begin(ctx)
	err = w.trouble(ctx, calls)
	calls.running.Wait()
	if err != nil {
		return f, errors.Join(err, calls.err())
	}
	took := time.Since(begun)
	runs, err := w.server.runs(ctx)
	if err != nil {
		return f, err
	}
	lost, twice := calls.check()
	f.Add("sessions", float64(mcpSessions))
	f.Add("lost", float64(lost))
	f.Add("twice", float64(twice))
	f.Add("run_again", runs-float64(mcpSessions))
	f.Add("seconds", took.Seconds())
	f.Add("messages_per_s", float64(mcpSessions*(mcpSteps+1))/took.Seconds())
	if err := calls.err(); err != nil {
		f.Remark("Lost: %.500s", err)
	}
	return f, nil
}

// mcpWorld is an MCP server behind a bridge, and two edges.
type mcpWorld struct {
	p      *system.Programs
	server *mcpServer
	log    *system.BareLog
	way    *wire // of the bridge to NATS
	edges  []*system.Program
	others []*system.Program
}

func startMCPWorld(ctx context.Context, p *system.Programs) (*mcpWorld, error) {
	w := &mcpWorld{p: p}
	if err := w.start(ctx); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *mcpWorld) start(ctx context.Context) (err error) {
	if w.server, err = startMCPServer(ctx); err != nil {
		return err
	}
	if w.log, err = system.StartBareLog(ctx, w.p, system.BareJetStream, ""); err != nil {
		return err
	}
	if w.way, err = newWire(w.log.URL); err != nil {
		return err
	}
	janitor, err := system.StartJanitor(ctx, w.p, w.log.URL)
	if err != nil {
		return err
	}
	w.others = append(w.others, janitor)
	bridge, err := system.StartBridge(ctx, w.p, w.way.url, w.server.url)
	if err != nil {
		return err
	}
	w.others = append(w.others, bridge)
	for range 2 {
		e, err := system.StartEdge(ctx, w.p, w.log.URL)
		if err != nil {
			return err
		}
		w.edges = append(w.edges, e)
	}
	return nil
}

func (w *mcpWorld) close() {
	for _, s := range slices.Concat(w.edges, w.others) {
		s.Stop()
	}
	if w.way != nil {
		w.way.close()
	}
	if w.log != nil {
		w.log.Close()
	}
	if w.server != nil {
		w.server.close()
	}
}

// trouble makes the steps happen, and the failures between them.
func (w *mcpWorld) trouble(ctx context.Context, calls *mcpCallSet) error {
	steps := func(allowed, arrived int) error {
		return errors.Join(w.server.allow(ctx, allowed), calls.wait(ctx, arrived))
	}
	if err := steps(20, 10); err != nil {
		return err
	}
	_ = w.edges[0].Kill() // it is waited for in stop
	if err := steps(25, 22); err != nil {
		return err
	}
	addr := w.edges[0].Edge[len("http://"):]
	w.edges[0].Stop()
	w.edges[0] = w.edges[1]
	w.edges = w.edges[:1]
	e, err := system.StartEdge(ctx, w.p, w.log.URL, "--edge-addr", addr)
	if err != nil {
		return err
	}
	w.edges = append(w.edges, e)
	if err := steps(40, 30); err != nil {
		return err
	}
	w.way.cut()
	if err := measure.Pause(ctx, mcpAway); err != nil {
		return err
	}
	w.way.restore()
	return w.server.allow(ctx, mcpSteps)
}

// mcpCallSet are calls of count, in a session each.
type mcpCallSet struct {
	http    *http.Client
	clients []*mcpClient
	steps   [][]int // that arrived, by client
	errs    []error
	arrived atomic.Int64
	failed  atomic.Int64
	running sync.WaitGroup
}

// open opens sessions, half of them at each edge.
func (w *mcpWorld) open(ctx context.Context) (*mcpCallSet, error) {
	s := &mcpCallSet{http: mcpHTTP(), clients: make([]*mcpClient, mcpSessions), steps: make([][]int, mcpSessions), errs: make([]error, mcpSessions)}
	places := make(chan struct{}, mcpOpening)
	for i := range mcpSessions {
		places <- struct{}{}
		s.running.Go(func() {
			a, b := w.edges[i%2].Edge+"/mcp", w.edges[1-i%2].Edge+"/mcp"
			s.clients[i], s.errs[i] = openMCP(ctx, s.http, a, b)
			<-places
		})
	}
	s.running.Wait()
	if err := s.err(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *mcpCallSet) begin(ctx context.Context) {
	args := fmt.Sprintf(`{"steps":%d}`, mcpSteps)
	for i, c := range s.clients {
		s.running.Go(func() {
			s.errs[i] = c.call(ctx, "count", args, func(step int) {
				s.steps[i] = append(s.steps[i], step)
				s.arrived.Add(1)
			})
			if s.errs[i] != nil {
				s.failed.Add(1)
			}
		})
	}
}

// wait waits until so many steps of each call have arrived, on average of those that have
// not failed.
func (s *mcpCallSet) wait(ctx context.Context, steps int) error {
	for s.arrived.Load() < int64(steps)*(int64(len(s.clients))-s.failed.Load()) {
		if err := measure.Pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%d steps of %d calls arrived: %w", s.arrived.Load(), len(s.clients), err)
		}
	}
	return nil
}

// check returns how many calls have not received everything, and how many messages arrived again.
func (s *mcpCallSet) check() (lost, twice int) {
	for i, steps := range s.steps {
		slices.Sort(steps)
		distinct := len(slices.Compact(slices.Clone(steps)))
		twice += len(steps) - distinct
		if s.errs[i] != nil || distinct != mcpSteps {
			lost++
		}
	}
	return lost, twice
}

func (s *mcpCallSet) err() error {
	for _, err := range s.errs { // one is enough
		if err != nil {
			return err
		}
	}
	return nil
}
