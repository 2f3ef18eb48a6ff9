package stateless

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync/atomic"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/rpc"
)

// ownRequests makes requests that no client has made, in the session of a call.
type ownRequests struct {
	session *call.Scope
	up      call.Upstream
	client  http.Header   // of the client's first request, without the fields of the new revision
	rest    call.Receiver // gets the other messages that come meanwhile
	numbers atomic.Uint64 // of the requests
}

// needsTask reports whether the server runs a tool only as a task. It asks for the tools, unless
// they are known.
func (o *ownRequests) needsTask(ctx context.Context, tool string, known *taskSupport) bool {
	if required, ok := known.of(tool); ok {
		return required
	}
	type listed struct {
		Name      string `json:"name"`
		Execution struct {
			Support string `json:"taskSupport"`
		} `json:"execution"`
	}
	tools := map[string]bool{}
	translate.EachTool(func(params translate.Object) json.RawMessage {
		id := o.ownID()
		m, _ := o.exchange(ctx, id, translate.Message(map[string]any{"id": id, "method": "tools/list", "params": params}))
		return m.Result // none: the server itself reports the error of the call
	}, func(tool listed) { tools[tool.Name] = tool.Execution.Support == "required" })
	known.learn(tools)
	return tools[tool]
}

// ownID returns the ID of another request.
func (o *ownRequests) ownID() string { return "rejoin-" + strconv.FormatUint(o.numbers.Add(1), 10) }

// askServer makes a request of our own, and returns an error unless the server answers with a result.
func (o *ownRequests) askServer(ctx context.Context, method string, params any) error {
	ctx, cancel := context.WithTimeout(ctx, o.session.Host.Config.OpenTimeout)
	defer cancel()
	id := o.ownID()
	m, refused := o.exchange(ctx, id, translate.Message(map[string]any{"id": id, "method": method, "params": params}))
	if refused != nil || m.Result == nil {
		return upstream.ErrUnanswered
	}
	return nil
}

// exchange makes a request of our own, and returns the response, or its refusal.
func (o *ownRequests) exchange(ctx context.Context, id string, data []byte) (rpc.Message, *rpc.Answer) {
	c := call.New(o.session, "", []json.RawMessage{event.MustJSON(id)})
	r := &ownAnswer{of: o.rest}
	c.To = r
	o.up.Serve(ctx, c, o.client, data)
	if r.response.IsResponse() {
		return r.response, nil
	}
	select {
	case a := <-c.Reply:
		a.Data = translate.WithID(a.Data, json.RawMessage("null")) // it is about the client's request
		return r.response, &a
	default:
		return r.response, new(upstream.Unreachable(upstream.ErrUnanswered))
	}
}

// ownAnswer takes the response to a request of our own. Other messages belong to the call.
type ownAnswer struct {
	of       call.Receiver
	response rpc.Message
}

func (r *ownAnswer) Take(m rpc.Message, it call.Item) error {
	if !m.IsResponse() {
		return r.of.Take(m, it)
	}
	r.response = m
	return nil
}

func (r *ownAnswer) Put(it call.Item) (err error) {
	r.response, err = rpc.ParseMessage(it.Data)
	return err
}
