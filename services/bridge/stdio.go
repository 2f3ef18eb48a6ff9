package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"rejoin/services/bridge/upstream"

	"rejoin/shared/rpc"
)

// stdio is a session with an MCP server of its own, a process that reads and writes a
// message a line (MCP 2025-11-25, transports, stdio). It is safe for concurrent use.
//
//	startStdio ──▶ read: one goroutine, stores what the process writes, in its order
//	           └─▶ mind: one, ends the process with the service, and the session with the process
//
// A call belongs to read while that has its turn, and to serve at the end.
type stdio struct {
	service *Service
	process *upstream.Process
	writing chan struct{} // holds a token while somebody writes
	first   chan []byte   // the response to initialize
	opening string        // idKey of initialize
	held    *held         // set before attached is closed
	ready   chan struct{} // closed when held is set
	over    chan struct{} // closed when nothing more will be read

	mu    sync.Mutex
	gone  bool // the process has ended
	calls []*spoken
}

// spoken is an open call of a process.
type spoken struct {
	*call
	turn     chan struct{}   // holds a token while somebody stores for the call, and guards ended
	ended    bool            // nothing more is stored
	done     chan struct{}   // closed when all is answered
	keys     map[string]bool // of its requests
	tokens   map[string]bool // idKeys of the progress tokens that they carried
	patience *patience
}

// startStdio starts a process and its session, of a client's share, without telling it
// anything.
func startStdio(s *Service, session, client string) (*stdio, error) {
	if !s.running.enter(client) {
		s.endUnused()
		return nil, errBusy
	}
	p, err := upstream.StartProcess(s.command, s.log.With("session", session))
	if err != nil {
		s.running.leave(client)
		return nil, err
	}
	u := &stdio{
		service: s, process: p, writing: make(chan struct{}, 1), first: make(chan []byte, 1),
		ready: make(chan struct{}), over: make(chan struct{}),
	}
	if !s.run(func() {
		defer s.running.leave(client)
		u.mind()
	}) {
		p.Stop()
		p.CloseAll()
		s.running.leave(client)
		return nil, upstream.ErrStopping
	}
	return u, nil
}

// mind stops the process when the service stops or when it has ended or closed its
// output, and ends the session then.
func (u *stdio) mind() {
	var reading sync.WaitGroup
	reading.Go(u.read)
	select {
	case <-u.over:
	case <-u.process.Exited:
		<-u.over // what it has written before
	case <-u.service.life.Done():
	}
	u.process.Stop()
	reading.Wait()
	u.process.CloseAll()
	u.mu.Lock()
	u.gone = true
	h := u.held
	u.mu.Unlock()
	if h != nil {
		h.finish(upstream.ErrExited)
	}
}

// attach makes the session that the process belongs to known.
func (u *stdio) attach(h *held) {
	u.mu.Lock()
	u.held = h
	gone := u.gone
	u.mu.Unlock()
	close(u.ready)
	if gone {
		h.finish(upstream.ErrExited)
	}
}

// initialize hands over the initialize request and returns the response. Errors are
// errExited, and ctx's cause.
func (u *stdio) initialize(ctx context.Context, id json.RawMessage, data []byte) ([]byte, error) {
	u.mu.Lock()
	u.opening = upstream.IDKey(id)
	u.mu.Unlock()
	if err := u.write(ctx, data); err != nil {
		return nil, err
	}
	select {
	case response := <-u.first:
		return response, nil
	case <-u.over:
		select {
		case response := <-u.first: // it came before
			return response, nil
		default:
			return nil, upstream.ErrExited
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// write hands over messages in a line.
func (u *stdio) write(ctx context.Context, data []byte) error {
	if bytes.ContainsAny(data, "\r\n") {
		var line bytes.Buffer
		if err := json.Compact(&line, data); err != nil {
			return err
		}
		data = line.Bytes()
	}
	select {
	case u.writing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-u.writing }()
	if err := u.process.Write(data, time.Now().Add(u.service.cfg.OpenTimeout)); err != nil {
		u.process.Signal(syscall.SIGKILL)
		return upstream.ErrExited
	}
	return nil
}

// send hands over messages that are no requests.
func (u *stdio) send(ctx context.Context, _ http.Header, data []byte) rpc.Answer {
	if err := u.write(ctx, data); err != nil {
		return upstream.Unreachable(err)
	}
	return rpc.Answer{Status: http.StatusAccepted}
}

// serve hands over requests, and waits until they are answered.
func (u *stdio) serve(ctx context.Context, c *call, _ http.Header, data []byte) {
	ctx, p := c.wait(ctx)
	defer p.over()
	call, ok := u.begin(c, p, data)
	if !ok {
		c.refuse(upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "a request with this ID is open"))
		return
	}
	why := u.write(ctx, data)
	if why == nil {
		c.accept()
		select {
		case <-call.done:
		case <-ctx.Done():
			why = context.Cause(ctx)
		}
	}
	u.forget(call)
	call.turn <- struct{}{}
	call.ended = true
	<-call.turn
	if errors.Is(why, upstream.ErrTimeout) {
		open, _ := c.left()
		for _, id := range open {
			_ = u.write(u.service.life, upstream.Cancelled(id)) // it is over in any case
		}
	}
	c.over(why)
}

// resume ends a call whose process has ended with the bridge before.
func (u *stdio) resume(_ context.Context, c *call, _ http.Header) { c.over(upstream.ErrExited) }

// listen has nothing to do: all messages come on one stream.
func (u *stdio) listen(context.Context, *call, func() http.Header) {}

// close ends the process.
func (u *stdio) close(context.Context, http.Header) {
	if u.process != nil {
		u.process.Stop()
	}
}

// begin makes a call known to read, unless one of its requests' IDs is in use.
func (u *stdio) begin(c *call, p *patience, data []byte) (*spoken, bool) {
	s := &spoken{
		call: c, turn: make(chan struct{}, 1), done: make(chan struct{}),
		keys: map[string]bool{}, tokens: map[string]bool{}, patience: p,
	}
	all, _, err := rpc.Messages(data)
	if err != nil {
		return nil, false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, data := range all {
		m, err := rpc.ParseMessage(data)
		if err != nil || !m.IsRequest() {
			continue
		}
		key := upstream.IDKey(m.ID)
		if slices.ContainsFunc(u.calls, func(other *spoken) bool { return other.keys[key] }) {
			return nil, false
		}
		s.keys[key] = true
		if token := m.Param("_meta", "progressToken"); token != nil {
			s.tokens[upstream.IDKey(token)] = true
		}
	}
	u.calls = append(u.calls, s)
	return s, true
}

func (u *stdio) forget(s *spoken) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = slices.DeleteFunc(u.calls, func(other *spoken) bool { return other == s })
}
