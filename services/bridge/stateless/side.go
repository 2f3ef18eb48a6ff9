package stateless

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/owners"
	"rejoin/services/bridge/resultcache"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// side is the MCP server's side of one call of a client without sessions: passed on, where
// the server speaks the revision too, else translated.
type side struct {
	*env
	session *sessions.Session
	request mcp.Request
	rule    taskRule
	kept    *resultcache.Request // nil for one whose result is not kept
	created []byte               // the response that names the task of another bridge; nil for none

	mu   sync.Mutex
	work taskWork // a [translated]; where the request is passed on, nil unless it may become a task
}

// translation returns the translated call, if the server speaks earlier revisions; else nil.
func (u *side) translation() *translated {
	t, _ := u.workNow().(*translated)
	return t
}

func (u *side) workNow() taskWork {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.work
}

// Serve hands the request to the MCP server. ctx ends with the call.
func (u *side) Serve(ctx context.Context, c *call.Call, client http.Header, data []byte) {
	if t := u.translation(); t != nil {
		r, _ := mcp.Parse(data) // [Calls.Again] has parsed it
		t.join(ctx, c, r)
		return
	}
	stateless, refused := u.server.IsStateless(ctx, client)
	if !stateless || u.request.Method == mcp.MethodDiscover || u.request.Method == mcp.MethodListen {
		c.MayRepeat()
	}
	switch {
	case refused != nil:
		c.Refuse(*refused)
	case mcp.IsTaskMethod(u.request.Method) && !u.server.HasOwnTasks():
		c.Refuse(owners.UnknownTask())
	case stateless:
		if mcp.IsTaskMethod(u.request.Method) {
			if refused := u.session.Tasks.Refuse(ctx, u.request.Name); refused != nil {
				c.Refuse(*refused)
				return
			}
		}
		u.pass(ctx, c, client, data)
	default:
		t := newTranslated(u.env, u.session, u.request)
		t.client, t.askable, t.rule = upstream.WithoutRepeated(client), translate.Askable(u.request), u.rule
		u.mu.Lock()
		u.work = t
		u.mu.Unlock()
		u.session.Receiver = t
		t.serve(ctx, c)
	}
}

// pass hands the request over as it is, without the members that the server may read in another way than the edge.
func (u *side) pass(ctx context.Context, c *call.Call, client http.Header, data []byte) {
	r := u.server.Direct()
	data = translate.Plain(data)
	if u.kept != nil {
		u.host.Metrics.Cached.WithLabelValues(host.CacheMiss).Inc()
		data = u.kept.Data
	}
	c.Rewrite = u.rewrite
	if u.request.Method == mcp.MethodListen {
		l := newListener(ctx, u.env, u.session, c, u.request)
		c.To = l
		looked := 0 // each look may be a read of the bucket; without access control nothing is read
		data = translate.WithoutTasks(data, func(id string) bool {
			_, ours := mcp.ParseTaskID(id)
			if ours || looked == MaxWatched || !u.server.HasOwnTasks() {
				return true
			}
			if l.owner != "" {
				looked++
			}
			return u.session.Tasks.Refuse(ctx, id) != nil
		})
	}
	if u.rule.may && !u.server.HasOwnTasks() {
		p := &passed{env: u.env, session: u.session, request: u.request, rule: u.rule, up: r}
		u.mu.Lock()
		u.work = p
		u.mu.Unlock()
		defer p.stop()
		p.serve(ctx, c, client, data)
		return
	}
	r.Serve(ctx, c, client, data)
}

// rewrite keeps a result for other clients, and puts Rejoin's revisions and tasks into the one of server/discover.
func (u *side) rewrite(m rpc.Message, data []byte) []byte {
	if u.kept != nil {
		u.host.Cache.Put(*u.kept, m.Result)
	}
	if u.request.Method == mcp.MethodDiscover {
		if result := u.discovery(m.Result); result != nil {
			return translate.Message(map[string]any{"id": m.ID, "result": result})
		}
	}
	return data
}

func (u *side) Send(context.Context, http.Header, []byte) rpc.Answer {
	return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "a call without a session takes no messages")
}

// Resume continues a call of another bridge: at a server of earlier revisions, if that gives event
// IDs. The revision itself has no resuming.
func (u *side) Resume(ctx context.Context, c *call.Call, client http.Header) {
	if u.created != nil && !c.HasNamedTask() { // the other bridge has not stored it
		c.Respond(u.created)
	}
	t := u.translation()
	if t == nil {
		if p, ok := u.work.(*passed); ok {
			c.To = p
		}
		c.End(upstream.ErrRestarted)
		return
	}
	t.resume(ctx, c, client)
}

// Held reports whether the call waits for its client.
func (u *side) Held() bool {
	t := u.translation()
	return t != nil && t.Held()
}

// Listen listens to the server's standalone stream, for the one call.
func (u *side) Listen(ctx context.Context, c *call.Call, _ func() http.Header) {
	if t := u.translation(); t != nil {
		t.up.Listen(ctx, c, func() http.Header { return t.client })
	}
}

// Close ends the session upstream.
func (u *side) Close(ctx context.Context, _ http.Header) {
	if t := u.translation(); t != nil && t.up != nil {
		t.stop()
		t.up.Close(ctx, t.client)
	}
}

// IsTask reports whether the call has become a task.
func (u *side) IsTask() bool { return u.task() != nil }

// RefreshTask stores the state of the task again if it has not changed for long, and the call is a task.
func (u *side) RefreshTask(now time.Time) {
	if work := u.task(); work != nil {
		work.RefreshTask(now)
	}
}

// MakeTask makes the call a task before its time, if it may become one.
func (u *side) MakeTask() {
	if work := u.workNow(); work != nil {
		work.makeTask()
	}
}

// task returns the call as one that is a task; nil when it is none.
func (u *side) task() taskWork {
	work := u.workNow()
	if work == nil || !work.IsTask() {
		return nil
	}
	return work
}

// errAnswers refuses answers that cannot be read.
var errAnswers = upstream.Failure(http.StatusBadRequest, rpc.CodeInvalidParams, "Invalid params: inputResponses is not an object.")

// changeTask takes a client's request about the session's task.
func (u *side) changeTask(c rpc.Ask, r mcp.Request) rpc.Answer {
	work := u.task()
	if work == nil || c.Owner != u.session.Demand.Asked().Owner {
		return owners.UnknownTask()
	}
	if r.Method == mcp.MethodCancelTask {
		work.cancelTask("the client has cancelled it")
	} else {
		var answers translate.Object
		if rpc.Unmarshal(r.Params["inputResponses"], &answers) != nil {
			return errAnswers
		}
		if err := work.updateTask(answers); err != nil {
			return upstream.Unreachable(err)
		}
	}
	return rpc.Answer{Status: http.StatusOK, Data: translate.Message(map[string]any{"id": r.ID, "result": json.RawMessage(`{"resultType":"complete"}`)})}
}

// continueTask continues the task that the call has become at another bridge.
func (u *side) continueTask(k *task) {
	u.created = k.created()
	if t := u.translation(); t != nil {
		t.continueTask(k)
		return
	}
	u.work = &passed{env: u.env, session: u.session, request: u.request, taskState: taskState{made: k, over: k.is.Status.IsTerminal()}}
}
