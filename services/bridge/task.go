package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"rejoin/services/bridge/config"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// taskRule says whether and when a call becomes a task.
type taskRule struct {
	may    bool
	atOnce bool
	after  time.Duration
}

// ruleOf returns the rule of a request. The error is an [*mcp.Error].
func (s *env) ruleOf(r mcp.Request) (taskRule, error) {
	if r.Method != mcp.MethodCallTool || s.host.cfg.TaskAfter < 0 {
		return taskRule{}, nil
	}
	policy, declared := s.tools[r.Name], r.DeclaresTasks()
	if policy == config.TaskRequired && !declared {
		return taskRule{}, mcp.ErrNeedsTasks
	}
	after := time.Duration(s.host.cfg.TaskAfter)
	if after == 0 {
		after = answerWithin
	}
	may := declared && policy != config.TaskNever
	return taskRule{may, may && policy == config.TaskAlways, after}, nil
}

const (
	// taskPoll is how often clients are to ask for a task.
	taskPoll = time.Second
	// taskCheck is how often a bridge looks how close the state of a task is to the log's floor.
	taskCheck = 10 * time.Second
)

// task is a call whose client has a name for it instead of the response: the states are in the
// session's stream [mcp.TaskStream], where any edge finds the newest. Each is stored before
// any client receives it. It belongs to who holds the lock of the call.
type task struct {
	session *callSession
	out     *writer
	is      mcp.StoredTask
	stored  time.Time
	checked time.Time // when refresh looked last
}

func newTask(h *callSession, is mcp.StoredTask) *task {
	return &task{session: h, out: newWriter(h.host, h.name, h.life, mcp.TaskStream), is: is}
}

// beginTask makes the session's call a task, in the log.
func beginTask(h *clientSession) (*task, error) {
	if err := h.openForTask(); err != nil {
		return nil, err
	}
	k := newTask(h.callSession, mcp.StoredTask{Task: mcp.Task{ID: mcp.TaskID(h.name), Status: mcp.TaskWorking, Created: time.Now().UTC(), Poll: taskPoll.Milliseconds()}})
	if err := k.store(); err != nil {
		return nil, err
	}
	h.host.log.Debug("a call becomes a task", "session", h.name)
	return k, nil
}

// store stores the state. Errors are those of [writer.put].
func (k *task) store() error {
	k.stored = time.Now()
	k.is.Updated = k.stored.UTC()
	data, err := k.is.Event()
	if err == nil {
		_, err = k.out.put(k.session.host.life, item{data: data, final: k.is.Status.Over()})
	}
	return err
}

// set stores another state, unless the task is over. One that is too large fails the task.
func (k *task) set(status mcp.Status, message string, change func(*mcp.StoredTask)) {
	if k.is.Status.Over() {
		return
	}
	err := k.change(status, message, change)
	if errors.Is(err, upstream.ErrTooLarge) {
		k.session.host.metrics.failures.WithLabelValues(failTooLarge).Inc()
		why := k.session.host.tooLarge(k.session.name)
		_, failure := translate.Outcome(rpc.ErrorMessage(nil, rpc.CodeInternal, why, nil))
		err = k.change(mcp.TaskFailed, why, func(is *mcp.StoredTask) { is.Result, is.Error = nil, failure })
	}
	if err != nil {
		k.session.host.log.Warn("the state of a task is not stored", "session", k.session.name, "status", string(status), "error", err)
	}
}

func (k *task) change(status mcp.Status, message string, change func(*mcp.StoredTask)) error {
	k.is.Status, k.is.Message, k.is.Requests, k.is.Asked = status, message, nil, nil
	if status.Over() {
		ttl := (time.Since(k.is.Created) + taskTTL(k.session.host)).Milliseconds()
		k.is.TTL = &ttl
	}
	if change != nil {
		change(&k.is)
	}
	return k.store()
}

// working notes that nothing is asked of the client any more.
func (k *task) working() { k.set(mcp.TaskWorking, "", nil) }

// ask has the client asked, and reports whether it can be: what is too large to ask ends the task. ids
// are those of the MCP server.
func (k *task) ask(requests map[string]json.RawMessage, ids map[string]json.RawMessage) bool {
	k.set(mcp.TaskInputRequired, "", func(is *mcp.StoredTask) { is.Requests, is.Asked = requests, ids })
	return !k.is.Status.Over()
}

// respond ends the task with the response to its request.
func (k *task) respond(response []byte) {
	result, failure := translate.Outcome(response)
	if failure == nil {
		k.set(mcp.TaskCompleted, "", func(is *mcp.StoredTask) { is.Result = result })
		return
	}
	var e translate.Failure
	_ = rpc.Unmarshal(failure, &e) // then there is no more to say
	k.set(mcp.TaskFailed, e.Message, func(is *mcp.StoredTask) { is.Error = failure })
}

// cancel ends the task without a response.
func (k *task) cancel(why string) { k.set(mcp.TaskCancelled, why, nil) }

// refresh stores the state again that has not changed, before the log's floor passes it: by half of
// the age limit, or when it is in the oldest quarter of its partition, of which the bytes limit
// takes less at a time.
func (k *task) refresh(now time.Time) {
	s := k.session.host
	if k.is.Status.Over() || now.Sub(k.checked) < taskCheck {
		return
	}
	k.checked = now
	age := s.backend.Log.Settings().MaxAge
	due := age > 0 && now.Sub(k.stored) >= age/2
	if !due {
		ctx, cancel := context.WithTimeout(s.life, s.cfg.AckTimeout)
		defer cancel()
		state, err := s.backend.Log.Look(ctx, s.backend.Log.Partition(k.session.name))
		due = err == nil && k.out.last < state.First+(state.Last-state.First)/4
	}
	if due {
		_ = k.store() // again the next time, and before it is too late
	}
}

// taskTTL is how long the log keeps the last state of a task.
func taskTTL(h *host) time.Duration {
	if age := h.backend.Log.Settings().MaxAge; age > 0 {
		return min(h.cfg.TaskTTL, age)
	}
	return h.cfg.TaskTTL
}

// created returns the response to the request that became the task: without what only tasks/get says.
func (k *task) created() []byte {
	is := k.is.Task
	is.Requests, is.Result, is.Error = nil, nil, nil
	return translate.Message(map[string]any{"id": nil, "result": is.CreatedResult()})
}

// taskWork is a call that may be a task. It is safe for concurrent use.
type taskWork interface {
	receiver
	// makeTask makes it one, unless it is over.
	makeTask()
	// isTask reports whether it is one.
	isTask() bool
	// updateTask takes a client's answers to what it was asked.
	updateTask(answers translate.Object)
	// cancelTask ends the call.
	cancelTask(why string)
	// refreshTask stores the state again that has not changed for long.
	refreshTask(now time.Time)
}
