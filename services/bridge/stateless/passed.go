package stateless

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/translate"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// passed is a call that may become a task, at a server of the revision without sessions. The
// request is passed on as it is; when the server asks for input after the call has become a task,
// the bridge makes the request again with the answers. It is safe for concurrent use.
type passed struct {
	*env
	session *sessions.Session
	request mcp.Request
	rule    taskRule
	up      call.Upstream

	taskState
	target   *call.Call         // the call whose client waits for the response; nil once the client has it, or a task
	round    int                // how often the server has asked for input
	required translate.Required // its last questions, and its state
	requests translate.Object   // the questions without an answer, by our keys
	answers  translate.Object   // the answers that the server gets, by its own keys
	answered chan struct{}      // closed when no question is left
}

// serve serves the call until it is over.
func (p *passed) serve(ctx context.Context, c *call.Call, client http.Header, data []byte) {
	c.To = p
	p.mu.Lock()
	p.target = c
	if p.rule.atOnce {
		p.make()
	} else {
		p.due = time.AfterFunc(p.taskAfter(), func() { p.session.Go(p.makeTask) })
	}
	p.mu.Unlock()
	p.up.Serve(ctx, c, client, data)
	for {
		next, id := p.next(ctx)
		if next == nil {
			return
		}
		again := call.New(p.session.Scope, "", []json.RawMessage{id})
		again.To = p
		again.ExpectNoAnswer()
		p.up.Serve(ctx, again, client, next)
	}
}

// next waits for the client's answers, and returns the request that the server gets with them; nil
// when the call is over.
func (p *passed) next(ctx context.Context) (data []byte, id json.RawMessage) {
	p.mu.Lock()
	answered := p.answered
	p.mu.Unlock()
	if answered == nil {
		return nil, nil
	}
	select {
	case <-answered:
	case <-ctx.Done():
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answered = nil
	if p.over {
		return nil, nil
	}
	params := maps.Clone(p.request.Params)
	delete(params, "requestState")
	delete(params, "inputResponses")
	maps.Copy(params, p.required.Again(p.answers))
	id = event.MustJSON("rejoin-" + strconv.Itoa(p.round))
	return translate.Message(map[string]any{"id": id, "method": p.request.Method, "params": params}), id
}

// make makes the call a task, unless it is over. The caller holds the lock.
func (p *passed) make() {
	if p.target == nil || p.made != nil {
		return
	}
	if p.made = beginTask(p.session); p.made != nil {
		p.respond(p.made.created())
	}
}

func (p *passed) makeTask() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.make()
}

// respond gives the client the response to its request. The caller holds the lock.
func (p *passed) respond(response []byte) {
	c := p.target
	p.target = nil
	c.Respond(response)
}

// Take takes a message of the server for the call.
func (p *passed) Take(m rpc.Message, it call.Item) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.over:
	case !m.IsResponse():
		if p.target == nil {
			return nil // a task has a state, and no more
		}
		return p.target.StoreOrDrop(it)
	case p.made != nil && p.ask(m.Result):
	default:
		p.end(it.Data)
	}
	return nil
}

// Put takes the error that ends the server's request.
func (p *passed) Put(it call.Item) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.end(it.Data)
	}
	return nil
}

// end ends the call with a response. The caller holds the lock.
func (p *passed) end(response []byte) {
	p.over = true
	if p.made != nil {
		p.made.respond(response)
		return
	}
	p.respond(response)
}

// ask asks the client the questions of a result. It returns false for a complete result, and for none. The caller
// holds the lock.
func (p *passed) ask(result json.RawMessage) bool {
	if result == nil {
		return false
	}
	required, asks, err := translate.ParseRequired(result)
	if err != nil { // no result of a tool
		p.end(rpc.ErrorMessage(nil, rpc.CodeInternal, err.Error(), nil))
		return true
	}
	if !asks {
		return false
	}
	p.round++
	p.required, p.requests, p.answers = required, translate.Object{}, translate.Object{}
	prefix := strconv.Itoa(p.round) + "."
	for key, q := range required.Questions {
		p.requests[prefix+key] = event.MustJSON(q.Whole()) // a task has each key once
	}
	p.answered = make(chan struct{})
	if len(p.requests) == 0 { // the server wants its state again, and more time
		answered := p.answered
		p.session.Go(func() {
			if p.host.Pause(p.session.Ctx, TaskPoll) {
				close(answered)
			}
		})
		return true
	}
	if p.askClient() {
		p.awaitInput(p.cancelTask)
	}
	return true
}

// askClient asks the client of the task, and reports whether the task continues. The caller holds the lock.
func (p *passed) askClient() bool {
	p.over = !p.made.storeQuestions(p.requests, nil)
	if p.over {
		p.session.Finish(host.ErrEnded)
	}
	return !p.over
}

func (p *passed) updateTask(answers translate.Object) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := 0
	for key, answer := range answers {
		if p.requests[key] != nil {
			delete(p.requests, key)
			p.answers[key[len(strconv.Itoa(p.round))+1:]] = answer
			taken++
		}
	}
	switch {
	case taken == 0 || p.over:
	case len(p.requests) > 0:
		p.askClient()
	default:
		p.expiry.Stop()
		p.made.working()
		close(p.answered)
	}
	return nil
}

func (p *passed) cancelTask(why string) {
	p.mu.Lock()
	if !p.over {
		p.over = true
		p.made.cancel(why)
	}
	p.mu.Unlock()
	p.session.Finish(host.ErrEnded)
}
