package sessions

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// Post hands a client's messages to the MCP server.
func (h *Session) Post(c rpc.Ask) rpc.Answer {
	all, batch, err := rpc.Messages(c.Data)
	if err != nil || batch && len(all) == 0 {
		return upstream.Failure(http.StatusBadRequest, rpc.CodeParse, "the body is not JSON-RPC")
	}
	var ids []json.RawMessage
	var cancel []string
	initialized, answers := false, true
	for _, data := range all {
		m, err := rpc.ParseMessage(data)
		switch {
		case err != nil:
			return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, err.Error())
		case m.IsRequest():
			ids = append(ids, m.ID)
		case m.Is(upstream.MethodCancelled):
			cancel = append(cancel, rpc.IDKey(m.Param("requestId")))
		case m.Is(upstream.MethodInitialized):
			initialized, answers = true, false
		case m.Method != nil:
			answers = false
		}
	}
	if refused := h.Tasks.Posted(&c, all, batch); refused != nil {
		return upstream.About(*refused, ids)
	}
	h.Remember(c.Header)
	if !initialized || len(all) > 1 {
		h.used.Store(true)
	}
	h.cancelled(cancel)
	if len(ids) == 0 {
		return h.notify(c, initialized, answers)
	}
	if c.Stream == "" || c.Stream == rpc.Standalone {
		return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "there is no stream for the responses")
	}
	a := h.Request(c, ids)
	if a.Status == http.StatusAccepted && initialized {
		h.Listen(nil)
	}
	return a
}

// Request begins a call and waits until the upstream has taken or refused it, or
// AcceptAfter has passed.
func (h *Session) Request(c rpc.Ask, ids []json.RawMessage) rpc.Answer {
	made := call.New(h.Scope, c.Stream, ids)
	made.Traced(c.Trace)
	give, ok := h.takeMemory(int64(len(c.Data)), c.Held)
	if !ok {
		return upstream.Busy(NoMemory)
	}
	if !c.Held && !h.Host.Open.Take(h.Share, 1) { // else its call has a place
		give()
		return upstream.Busy("the bridge has too many requests, or too many of this client's")
	}
	h.Host.Metrics.Calls.Inc()
	leave := func() {
		h.Host.Metrics.Calls.Dec()
		give()
		if !c.Held {
			h.Host.Open.Give(h.Share, 1)
		}
	}
	if !h.addCall(made) {
		leave()
		return upstream.Failure(http.StatusConflict, rpc.CodeInvalid, "the stream has requests already, or the call has too many open")
	}
	if !h.Go(func() {
		defer h.forget(made, leave)
		h.Upstream.Serve(h.Ctx, made, c.Header, c.Data)
	}) {
		leave()
		h.removeCall(made) // it is not written down: the edge asks the next bridge
		return h.unavailable()
	}
	wait := h.Host.Config.AcceptAfter
	if h.OneCall {
		wait = h.Host.Times.Answer
	}
	select {
	case a := <-made.Reply:
		return a
	case <-time.After(wait):
		made.Accept()
	}
	if _, err := h.AnswerOrOpen(made, call.Item{}); err != nil {
		h.Finish(host.ErrEnded) // the client has the error
		return <-made.Reply
	}
	select {
	case a := <-made.Reply:
		return a
	case <-time.After(unloggedFor):
		if made.Tell(upstream.OutcomeUnknown(begun + "the response has not come in time, and there are too many sessions to store it")) {
			h.Finish(host.ErrEnded)
		}
	}
	return <-made.Reply
}

// unloggedFor is how long a call may take that cannot have a session in the log: less than the
// edge waits.
const unloggedFor = 25 * time.Second

// unavailable returns the reason why the session runs no more work: it has ended, or continues at the next
// bridge.
func (h *Session) unavailable() rpc.Answer {
	if h.HasEnded() {
		return host.Ended()
	}
	return upstream.NotTaken(upstream.ErrStopping)
}

// NoMemory is the error for a client whose share of the memory is taken.
const NoMemory = "the bridge holds too much for clients, or too much for this one"

// notifyWithin is how long a client waits for the upstream to take messages that are no requests.
// It keeps the order of messages that a client sends one after the other.
const notifyWithin = 5 * time.Second

// takeMemory takes memory for messages. Answers may take some besides the client's share: a
// call of the client's may wait for them, and hold its memory until then.
func (h *Session) takeMemory(n int64, answers bool) (give func(), ok bool) {
	s := h.Host
	if s.Memory.Take(h.Share, n) {
		return func() { s.Memory.Give(h.Share, n) }, true
	}
	extra := min(n, host.AnswerBytes)
	if !answers || !s.Answers.Take(h.Share, extra) {
		return nil, false
	}
	if !s.Memory.Take("", n) {
		s.Answers.Give(h.Share, extra)
		return nil, false
	}
	return func() {
		s.Memory.Give("", n)
		s.Answers.Give(h.Share, extra)
	}, true
}

// notify hands over messages that are no requests. answers says that all of them are answers or
// cancellations.
func (h *Session) notify(c rpc.Ask, initialized, answers bool) rpc.Answer {
	give, ok := h.takeMemory(int64(len(c.Data)), answers)
	if !ok {
		return upstream.Busy(NoMemory)
	}
	reply := make(chan rpc.Answer, 1)
	if !h.Go(func() {
		defer give()
		ctx, cancel := context.WithTimeout(h.Ctx, h.Host.Config.OpenTimeout)
		defer cancel()
		a := h.Upstream.Send(ctx, c.Header, c.Data)
		reply <- a
		switch {
		case a.Status == http.StatusNotFound:
			h.Finish(upstream.ErrGone)
		case a.Status == http.StatusAccepted && initialized:
			h.Listen(nil)
		}
	}) {
		give()
		return h.unavailable()
	}
	select {
	case a := <-reply:
		return a
	case <-time.After(notifyWithin):
		return rpc.Answer{Status: http.StatusAccepted}
	}
}

// EndNow ends the session at its client's request, and waits for its end in the log.
func (h *Session) EndNow(c rpc.Ask) rpc.Answer {
	h.Remember(c.Header)
	h.Finish(host.ErrEnded)
	ctx, cancel := context.WithTimeout(h.Host.Life, h.Host.Config.CloseTimeout())
	defer cancel()
	select {
	case <-h.ended:
		return rpc.Answer{Status: http.StatusNoContent}
	case <-ctx.Done():
		return upstream.Busy("the session cannot be closed now")
	}
}

// Check makes sure that a stream gets its response, or an error.
func (h *Session) Check(c rpc.Ask) rpc.Answer {
	accepted := rpc.Answer{Status: http.StatusAccepted}
	ids, _ := rpc.RequestIDs(c.Stream)
	if h.Call(c.Stream) != nil || h.isArriving(c.Stream) || len(ids) == 0 {
		return accepted
	}
	s := h.Host
	ctx, cancel := context.WithTimeout(s.Life, s.Config.CloseTimeout())
	defer cancel()
	lost := call.New(h.Scope, c.Stream, ids)
	final, err := lost.HasFinal(ctx)
	if err != nil {
		return upstream.Busy("the log cannot be read now")
	}
	if final {
		return accepted
	}
	// The bridge may have taken the request meanwhile.
	lost.ExpectNoAnswer() // its client waits for an event in the log
	if !h.addCall(lost) {
		return accepted
	}
	defer h.forget(lost, func() {})
	switch final, err := lost.ReloadOnce(ctx); { // some of a batch may be answered
	case err != nil:
		return upstream.Busy("the log cannot be read now")
	case final:
		return accepted
	}
	lost.Lose()
	return accepted
}
