package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"rejoin/services/bridge/config"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// taskRule says whether and when a call becomes a task.
type taskRule struct {
	may    bool
	atOnce bool
	after  time.Duration
}

// taskRule returns the rule of a request. The error is an [*mcp.Error].
func (s *Service) taskRule(r mcp.Request) (taskRule, error) {
	if r.Method != mcp.MethodCallTool || s.cfg.TaskAfter < 0 {
		return taskRule{}, nil
	}
	policy, declared := s.taskTools[r.Name], r.DeclaresTasks()
	if policy == config.TaskRequired && !declared {
		return taskRule{}, mcp.ErrNeedsTasks
	}
	after := time.Duration(s.cfg.TaskAfter)
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
	session *clientSession
	out     *writer
	is      mcp.StoredTask
	stored  time.Time
	checked time.Time // when refresh looked last
}

func newTask(h *clientSession, is mcp.StoredTask) *task {
	return &task{session: h, out: newWriter(h.service, h.name, h.life, mcp.TaskStream), is: is}
}

// beginTask makes the session's call a task, in the log.
func (h *clientSession) beginTask() (*task, error) {
	if err := h.openForTask(); err != nil {
		return nil, err
	}
	k := newTask(h, mcp.StoredTask{Task: mcp.Task{ID: mcp.TaskID(h.name), Status: mcp.TaskWorking, Created: time.Now().UTC(), Poll: taskPoll.Milliseconds()}})
	if err := k.store(); err != nil {
		return nil, err
	}
	h.service.log.Debug("a call becomes a task", "session", h.name)
	return k, nil
}

// store stores the state. Errors are those of [writer.put].
func (k *task) store() error {
	k.stored = time.Now()
	k.is.Updated = k.stored.UTC()
	data, err := k.is.Event()
	if err == nil {
		_, err = k.out.put(k.session.service.life, item{data: data, final: k.is.Status.Over()})
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
		k.session.service.metrics.failures.WithLabelValues(failTooLarge).Inc()
		why := k.session.service.tooLarge(k.session.name)
		_, failure := translate.Outcome(rpc.ErrorMessage(nil, rpc.CodeInternal, why, nil))
		err = k.change(mcp.TaskFailed, why, func(is *mcp.StoredTask) { is.Result, is.Error = nil, failure })
	}
	if err != nil {
		k.session.service.log.Warn("the state of a task is not stored", "session", k.session.name, "status", string(status), "error", err)
	}
}

func (k *task) change(status mcp.Status, message string, change func(*mcp.StoredTask)) error {
	k.is.Status, k.is.Message, k.is.Requests, k.is.Asked = status, message, nil, nil
	if status.Over() {
		ttl := (time.Since(k.is.Created) + k.session.service.taskTTL()).Milliseconds()
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
	s := k.session.service
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
func (s *Service) taskTTL() time.Duration {
	if age := s.backend.Log.Settings().MaxAge; age > 0 {
		return min(s.cfg.TaskTTL, age)
	}
	return s.cfg.TaskTTL
}

// created returns the response to the request that became the task: without what only tasks/get says.
func (k *task) created() []byte {
	is := k.is.Task
	is.Requests, is.Result, is.Error = nil, nil, nil
	return translate.Message(map[string]any{"id": nil, "result": is.CreatedResult()})
}

// isTaskCreated reports whether an event is the response that names a task.
func isTaskCreated(data []byte) bool {
	m, err := rpc.ParseMessage(data)
	var r struct {
		Type string `json:"resultType"`
	}
	return err == nil && m.Result != nil && rpc.Unmarshal(m.Result, &r) == nil && r.Type == "task"
}

// taskWork is a call that may be a task. It is safe for concurrent use.
type taskWork interface {
	receiver
	// isTask reports whether it is one.
	isTask() bool
	// updateTask takes a client's answers to what it was asked.
	updateTask(answers translate.Object)
	// cancelTask ends the call.
	cancelTask(why string)
	// refreshTask stores the state again that has not changed for long.
	refreshTask(now time.Time)
}

// task returns the session's call as one that is a task; nil when it is none.
func (h *clientSession) task() taskWork {
	u, ok := h.up.(*stateless)
	if !ok {
		return nil
	}
	u.mu.Lock()
	work := u.work
	u.mu.Unlock()
	if work == nil || !work.isTask() {
		return nil
	}
	return work
}

// changeTask takes a client's request about the session's task.
func (h *clientSession) changeTask(c rpc.Call, r mcp.Request) rpc.Answer {
	work := h.task()
	if work == nil || c.Owner != h.onDemand.call.Owner {
		return upstream.About(unknownTask(), []json.RawMessage{r.ID})
	}
	if r.Method == mcp.MethodCancelTask {
		work.cancelTask("the client has cancelled it")
	} else {
		var answers translate.Object
		if rpc.Unmarshal(r.Params["inputResponses"], &answers) != nil {
			return upstream.About(upstream.Failure(http.StatusBadRequest, rpc.CodeInvalidParams, "Invalid params: inputResponses is not an object."), []json.RawMessage{r.ID})
		}
		work.updateTask(answers)
	}
	return rpc.Answer{Status: http.StatusOK, Data: translate.Message(map[string]any{"id": r.ID, "result": json.RawMessage(`{"resultType":"complete"}`)})}
}

// The tasks of the MCP server's own. To the server, all clients may be one, the bridge: which principal
// has which task is noted when the server names it, and a task that is not noted for a client is unknown.
// Without access control there is one principal, and nothing is noted.

const (
	// noteWithin is how long the answer that names a task waits until its note is stored, which takes
	// milliseconds: less than an answer may take without the log.
	noteWithin = 100 * time.Millisecond
	// maxUnwritten is how many notes may be left to store later; an answer beyond waits.
	maxUnwritten = 10_000
)

// noteTasks takes a response of the MCP server: it notes the task that was made, and returns the
// response without the tasks of others that it lists. An answer does not get lost because its note
// cannot be stored: until then the task is known to this bridge alone.
func (h *clientSession) noteTasks(m rpc.Message, data []byte) ([]byte, error) {
	if h.principal == "" || !bytes.Contains(m.Result, []byte("taskId")) {
		return data, nil
	}
	var r struct {
		Type string   `json:"resultType"`
		ID   string   `json:"taskId"`
		TTL  *float64 `json:"ttlMs"`
		Task struct { // of 2025-11-25
			ID  string   `json:"taskId"`
			TTL *float64 `json:"ttl"`
		} `json:"task"`
	}
	read := rpc.Unmarshal(m.Result, &r) == nil
	switch {
	case h.onDemand != nil:
		if read && r.Type == "task" && r.ID != "" {
			h.noteTask(r.ID, r.TTL)
		}
	case read && r.Task.ID != "":
		h.noteTask(r.Task.ID, r.Task.TTL)
	default:
		return h.ownTasks(m, data)
	}
	return data, nil
}

// noteTask notes a task that the MCP server keeps for a number of milliseconds.
func (h *clientSession) noteTask(id string, ms *float64) {
	s, ttl := h.service, time.Duration(0)
	if ms != nil {
		ttl = time.Duration(min(*ms, 1e12)) * time.Millisecond
	}
	write, written := s.owners.Note(h.principal, id, ttl), make(chan struct{})
	if !s.run(func() {
		defer close(written)
		err := retry(s.life, func() error {
			err := write(s.life)
			if err != nil {
				s.log.Info("whose a task of the MCP server is cannot be stored yet", "session", h.name, "error", err)
			}
			return err
		})
		if err != nil {
			s.log.Warn("whose a task of the MCP server is was not stored: its client cannot ask for it any more", "session", h.name)
		}
	}) {
		return
	}
	within := time.After(noteWithin)
	if s.owners.Unwritten() > maxUnwritten {
		within = nil
	}
	select {
	case <-written:
	case <-within:
	}
}

// ownTasks returns a response to tasks/list of 2025-11-25 without the tasks of other principals. Any
// other response has no such tasks.
func (h *clientSession) ownTasks(m rpc.Message, data []byte) ([]byte, error) {
	var result translate.Object
	var all, own []json.RawMessage
	if lists := rpc.Unmarshal(m.Result, &result) == nil && rpc.Unmarshal(result["tasks"], &all) == nil; !lists {
		return data, nil
	}
	for _, is := range all {
		var task struct {
			ID string `json:"taskId"`
		}
		owns := rpc.Unmarshal(is, &task) != nil || task.ID == ""
		if !owns {
			if err := retry(h.ctx, func() (err error) {
				owns, err = h.service.owners.Owns(h.ctx, h.principal, task.ID)
				return err
			}); err != nil {
				return nil, context.Cause(h.ctx)
			}
		}
		if owns {
			own = append(own, is)
		}
	}
	if len(own) == len(all) {
		return data, nil
	}
	result["tasks"] = event.MustJSON(append([]json.RawMessage{}, own...))
	return translate.Message(map[string]any{"id": m.ID, "result": result}), nil
}

// refuseTask returns how a request about a task of the MCP server's own is refused, as one about a task
// that does not exist; nil when the task is the client's.
func (h *clientSession) refuseTask(ctx context.Context, id string) *rpc.Answer {
	if h.principal == "" {
		return nil
	}
	owns, err := h.service.owners.Owns(ctx, h.principal, id)
	a := unknownTask()
	switch {
	case err != nil:
		a = upstream.Busy("whose the task is cannot be looked up now")
	case owns:
		return nil
	}
	return &a
}

// guardTasks looks at what a client of 2025-11-25 has posted in a session, and returns how it is
// refused: for a task that is not its own.
func (h *clientSession) guardTasks(c *rpc.Call, all []json.RawMessage, batch bool) *rpc.Answer {
	if h.principal == "" {
		return nil
	}
	for i, data := range all {
		all[i] = translate.Plain(data)
		m, err := rpc.ParseMessage(all[i])
		if err != nil || m.Method == nil || !strings.HasPrefix(*m.Method, "tasks/") || *m.Method == "tasks/list" {
			continue
		}
		var id string
		_ = json.Unmarshal(m.Param("taskId"), &id) // no task has an empty one
		if refused := h.refuseTask(h.ctx, id); refused != nil {
			if refused.Status == mcp.ErrTask.Status && !batch {
				refused.Status = http.StatusOK // as the response of a server of this revision
			}
			return refused
		}
	}
	if c.Data = all[0]; batch {
		c.Data = event.MustJSON(all)
	}
	return nil
}
