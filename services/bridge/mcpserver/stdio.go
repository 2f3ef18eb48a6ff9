package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// stdio is a session with an MCP server of its own, a process that reads and writes a
// message a line (MCP 2025-11-25, transports, stdio). It is safe for concurrent use.
//
//	startStdio ──▶ read: one goroutine, stores the process's messages, in their order
//	           └─▶ watchProcess: one, ends the process with the service, and the session with the process
//
// While read has a call's turn, the call is its own; at the end it is that of Serve.
type stdio struct {
	host    *host.Host
	process *upstream.Process
	name    string          // of the session that it was started for
	writing chan struct{}   // holds a token while a goroutine writes
	first   chan []byte     // the response to initialize
	opening json.RawMessage // the ID of initialize; nil before
	session *call.Scope     // set before ready is closed
	ready   chan struct{}   // closed when session is set
	closing chan struct{}   // closed when there is no session, or not any more
	closed  sync.Once
	over    chan struct{} // closed when nothing more will be read

	mu    sync.Mutex
	calls []*stdioCall
	// spoke is set when a message that is no request was sent since the newest call began: an error without an
	// ID may be about that message.
	spoke bool
}

// stdioCall is an open call of a process.
type stdioCall struct {
	*call.Call
	turn   chan struct{}   // holds a token while a goroutine stores for the call, and guards ended
	ended  bool            // nothing more is stored
	sent   bool            // the process has it; guarded by the mu of stdio
	done   chan struct{}   // closed when all is answered
	keys   map[string]bool // of its requests
	tokens map[string]bool // [rpc.IDKey] of the progress tokens that they carried
}

// startStdio starts a process and its session, of a client's share, without sending it
// anything.
func (s *Server) startStdio(session, client string) (*stdio, error) {
	leave, ok := s.takePlace(client)
	if !ok {
		s.closeSpares(func(*Unused) bool { return true }) // a client needs their places
		s.EndUnused()
		return nil, errBusy
	}
	p, err := upstream.StartProcess(s.command, s.host.Logger.With("session", session))
	if err != nil {
		leave()
		return nil, err
	}
	s.host.Reached()
	u := &stdio{
		host: s.host, process: p, name: session, writing: make(chan struct{}, 1), first: make(chan []byte, 1),
		ready: make(chan struct{}), closing: make(chan struct{}), over: make(chan struct{}),
	}
	if !s.host.Go(func() {
		defer leave()
		u.watchProcess()
	}) {
		p.Stop()
		p.CloseAll()
		leave()
		return nil, upstream.ErrStopping
	}
	return u, nil
}

// takePlace takes a place for a process, and its files, of a client's share. leave gives them back.
func (s *Server) takePlace(client string) (leave func(), ok bool) {
	if !s.host.Processes.Take(client, 1) {
		return nil, false
	}
	if !s.host.Files.Take(client, upstream.ProcessFiles) {
		s.host.Processes.Give(client, 1)
		return nil, false
	}
	return func() {
		s.host.Files.Give(client, upstream.ProcessFiles)
		s.host.Processes.Give(client, 1)
	}, true
}

// watchProcess stops the process when the service stops or when it has ended or closed its
// output, and ends the session then.
func (u *stdio) watchProcess() {
	var reading sync.WaitGroup
	reading.Go(u.read)
	select {
	case <-u.over:
	case <-u.process.Exited:
		<-u.over // after its last output
	case <-u.host.Life.Done():
	}
	u.process.Stop()
	reading.Wait()
	u.process.CloseAll()
	select {
	case <-u.ready:
		u.session.Session.Finish(upstream.ErrExited)
	default: // it has none, or the service stops
	}
}

// attach sets the session that the process belongs to.
func (u *stdio) attach(of *call.Scope) {
	u.session = of
	close(u.ready)
	select {
	case <-u.over: // watchProcess may have seen no session
		of.Session.Finish(upstream.ErrExited)
	default:
	}
}

// initialize forwards the initialize request and returns the response. Errors are
// [upstream.ErrExited], and ctx's cause.
func (u *stdio) initialize(ctx context.Context, id json.RawMessage, data []byte) ([]byte, error) {
	u.mu.Lock()
	u.opening = id
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

// write writes messages to the process, in a line.
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
	if err := u.process.Write(data, u.host.Config.OpenTimeout, u.isBusy); err != nil {
		u.process.Signal(syscall.SIGKILL)
		return upstream.ErrExited
	}
	return nil
}

// isBusy reports whether the process has a call: some servers do not read while they work on one, which has a time-out
// of its own.
func (u *stdio) isBusy() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.ContainsFunc(u.calls, func(s *stdioCall) bool { return s.sent })
}

// Send forwards messages that are no requests.
func (u *stdio) Send(ctx context.Context, _ http.Header, data []byte) rpc.Answer {
	u.mu.Lock()
	u.spoke = true
	u.mu.Unlock()
	if err := u.write(ctx, data); err != nil {
		return upstream.Unreachable(err)
	}
	return rpc.Answer{Status: http.StatusAccepted}
}

// Serve forwards requests, and waits until they are answered.
func (u *stdio) Serve(ctx context.Context, c *call.Call, _ http.Header, data []byte) {
	ctx, p := c.WithIdleTimer(ctx)
	defer p.End()
	call, ok := u.begin(c, data)
	if !ok {
		c.Refuse(upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "a request with this ID is open"))
		return
	}
	why := u.write(ctx, data)
	if why == nil {
		u.mu.Lock()
		call.sent = true
		u.mu.Unlock()
		c.Accept()
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
		open, _ := c.Left()
		for _, r := range open {
			_ = u.write(u.host.Life, upstream.Cancelled(r.Sent)) // it is over in any case
		}
	}
	c.End(why)
}

// Resume ends a call whose process has ended with the previous bridge.
func (u *stdio) Resume(_ context.Context, c *call.Call, _ http.Header) { c.End(upstream.ErrExited) }

// Listen has nothing to do: all messages come on one stream.
func (u *stdio) Listen(context.Context, *call.Call, func() http.Header) {}

// alive reports whether the process runs. Its output may still be unread: messages wait for the
// session.
func (u *stdio) alive() bool {
	select {
	case <-u.over:
		return false
	case <-u.process.Exited:
		return false
	default:
		return true
	}
}

// Close ends the process.
func (u *stdio) Close(context.Context, http.Header) {
	if u.process != nil {
		u.closed.Do(func() { close(u.closing) })
		u.process.Stop()
	}
}

// begin makes a call known to read, unless one of its requests' IDs is in use.
func (u *stdio) begin(c *call.Call, data []byte) (*stdioCall, bool) {
	s := &stdioCall{
		Call: c, turn: make(chan struct{}, 1), done: make(chan struct{}),
		keys: map[string]bool{}, tokens: map[string]bool{},
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
		key := rpc.IDKey(m.ID)
		if slices.ContainsFunc(u.calls, func(other *stdioCall) bool { return other.keys[key] }) {
			return nil, false
		}
		s.keys[key] = true
		if token := m.Param("_meta", "progressToken"); token != nil {
			s.tokens[rpc.IDKey(token)] = true
		}
	}
	u.calls, u.spoke = append(u.calls, s), false
	return s, true
}

func (u *stdio) forget(s *stdioCall) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = slices.DeleteFunc(u.calls, func(other *stdioCall) bool { return other == s })
}

// errBusy is returned when there are as many processes as there may be, or as many as
// this client may have of them, or no files for one more.
var errBusy = errors.New("the bridge has too many processes, or too many of this client's")

// errEarly is the reason why a message before the response to initialize is left out.
var errEarly = errors.New("it came before the response to initialize, and too many did")

// maxEarly is how many messages a process may write before it answers initialize.
const maxEarly = 64

// read stores the messages of the process, until its output ends. They wait for the session: MCP allows log messages
// and pings before the response to initialize. After that response nothing is read while a message waits.
func (u *stdio) read() {
	defer close(u.over)
	l := upstream.NewLines(&upstream.Leftover{F: u.process.Stdout}, u.host.MaxBytes())
	var waiting [][]byte
	size, opened, name := 0, false, u.name
	var own *call.Call // nil before the session is ready
	for {
		messages, err := u.next(l, name)
		if err != nil {
			return
		}
		for _, data := range messages {
			switch {
			case !opened && u.isFirst(data):
				opened = true
			case !opened && (len(waiting) == maxEarly || size+len(data) > u.host.MaxBytes()):
				u.skip(data, errEarly)
			default:
				waiting, size = append(waiting, data), size+len(data)
			}
		}
		if !opened || len(waiting) == 0 {
			continue
		}
		if own == nil {
			select {
			case <-u.ready:
			case <-u.closing:
				return
			case <-u.host.Life.Done():
				return
			}
			own, name = call.NewStandalone(u.session, u.session.Receiver), u.session.Name
		}
		for _, data := range waiting {
			if u.store(data, own) != nil {
				return
			}
		}
		waiting = nil
	}
}

// next returns the messages of the next line that holds any. A response that is too large becomes
// an error.
func (u *stdio) next(l *upstream.Lines, session string) ([]json.RawMessage, error) {
	for {
		var skim upstream.Skimmer
		line, err := l.Next(skim.Add)
		if errors.Is(err, upstream.ErrTooLarge) {
			u.host.Metrics.Dropped.WithLabelValues(host.DropTooLarge).Inc()
			id := skim.Response()
			if id == nil {
				continue
			}
			line, err = rpc.ErrorMessage(id, rpc.CodeInternal, u.host.TooLarge(session), nil), nil
		}
		if err != nil {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		all, _, err := rpc.Messages(bytes.Clone(line))
		if err != nil {
			u.skip(line, err)
			continue
		}
		all = slices.DeleteFunc(all, func(data json.RawMessage) bool {
			_, err := rpc.ParseMessage(data)
			if err != nil {
				u.skip(data, err)
			}
			return err != nil
		})
		if len(all) > 0 {
			return all, nil
		}
	}
}

// skippedBytes is how much of a line that is no message the log shows.
const skippedBytes = 256

// skip leaves out a part of the process's output, and logs it.
func (u *stdio) skip(line []byte, why error) {
	u.host.Metrics.Dropped.WithLabelValues(host.DropInvalid).Inc()
	u.process.Log.Warn("the MCP server's output has text that is no message; it is left out",
		"line", strings.ToValidUTF8(string(line[:min(len(line), skippedBytes)]), "\uFFFD"), "reason", why)
}

// isFirst passes on the response to initialize, and reports whether data is that response.
func (u *stdio) isFirst(data []byte) bool {
	u.mu.Lock()
	opening := u.opening
	u.mu.Unlock()
	if opening == nil {
		return false
	}
	_, data, ok := responseTo(opening, data)
	if !ok {
		return false
	}
	u.first <- data
	return true
}

// store stores a message on the stream that it belongs to. An error ends the reading.
func (u *stdio) store(data []byte, own *call.Call) error {
	m, err := rpc.ParseMessage(data)
	if err != nil {
		return err // next has left such messages out
	}
	s := u.route(m)
	if s == nil {
		if m.IsResponse() {
			own.Drop(host.DropLate, call.ErrUnknownRequest)
			return nil
		}
		return continueAfter(own.Take(call.Item{Data: data}))
	}
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.ended || s.Done() {
		own.Drop(host.DropLate, call.ErrUnknownRequest)
		return nil
	}
	s.PauseIdleTimer()
	defer s.ResumeIdleTimer()
	err = s.Take(call.Item{Data: data})
	if s.Done() {
		close(s.done)
	}
	return continueAfter(err)
}

// continueAfter leaves out errors that are about one stream alone.
func continueAfter(err error) error {
	if errors.Is(err, call.ErrClosed) {
		return nil
	}
	return err
}

// route returns the call that a message belongs to; nil when it is about none, or about
// one that is over. A message that names no call belongs to the only one that is open and not cancelled. So
// does an error without an ID (see [call.Call.Take]), unless it may be about another message.
func (u *stdio) route(m rpc.Message) *stdioCall {
	u.mu.Lock()
	defer u.mu.Unlock()
	if m.IsResponse() && string(m.ID) != "null" {
		for _, s := range u.calls {
			if s.keys[rpc.IDKey(m.ID)] {
				return s
			}
		}
		return nil
	}
	if token := m.Param("progressToken"); token != nil {
		for _, s := range u.calls {
			if s.tokens[rpc.IDKey(token)] {
				return s
			}
		}
	}
	if m.IsResponse() && u.spoke {
		return nil
	}
	var only *stdioCall
	for _, s := range u.calls {
		_, cancelled := s.Left()
		switch {
		case cancelled: // its client may not read any more; so is one without requests, about to be forgotten
		case only != nil:
			return nil
		default:
			only = s
		}
	}
	return only
}
