package stateless

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/config"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/pause"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// taskRule says whether and when a call becomes a task.
type taskRule struct {
	may    bool
	atOnce bool
}

// ruleOf returns the rule of a request. The error is an [*mcp.Error].
func (s *env) ruleOf(r mcp.Request) (taskRule, error) {
	if r.Method != mcp.MethodCallTool || s.host.Config.TaskAfter < 0 {
		return taskRule{}, nil
	}
	policy, declared := s.tools[r.Name], r.DeclaresTasks()
	if policy == config.TaskRequired && !declared {
		return taskRule{}, mcp.ErrNeedsTasks
	}
	may := declared && policy != config.TaskNever
	return taskRule{may, may && policy == config.TaskAlways}, nil
}

// taskAfter is how long a call may take before it becomes a task, where --task-after permits tasks.
func (s *env) taskAfter() time.Duration {
	if after := time.Duration(s.host.Config.TaskAfter); after > 0 {
		return after
	}
	return host.AnswerWithin
}

const (
	// TaskPoll is how often clients are to ask for a task.
	TaskPoll = time.Second
	// TaskCheck is how often a bridge looks how close the state of a task is to the log's floor.
	TaskCheck = 10 * time.Second
)

// task is a call whose client has a task ID instead of the response: the states are in the
// session's stream [mcp.TaskStream], where any edge finds the newest. Each is stored before
// any client receives it. The lock of the call guards it.
type task struct {
	session *call.Scope
	out     *call.Writer
	is      mcp.StoredTask
	stored  time.Time
	checked time.Time // when the log was looked at last
}

func newTask(h *call.Scope, is mcp.StoredTask) *task {
	return &task{session: h, out: call.NewWriter(h.Host, h.Name, h.Life, mcp.TaskStream), is: is}
}

// beginTask makes the session's call a task, in the log; nil when that cannot be done.
func beginTask(h *sessions.Session) *task {
	err := h.OpenForTask()
	k := newTask(h.Scope, mcp.StoredTask{Task: mcp.Task{ID: mcp.TaskID(h.Name), Status: mcp.TaskWorking, Created: time.Now().UTC(), Poll: TaskPoll.Milliseconds()}})
	if err == nil {
		err = k.store()
	}
	if err != nil {
		h.Host.Logger.Info("a call does not become a task", "session", h.Name, "error", err)
		return nil
	}
	h.Host.Logger.Debug("a call becomes a task", "session", h.Name)
	return k
}

// store stores the state. Errors are those of [call.Writer.Put].
func (k *task) store() error {
	k.stored = time.Now()
	k.is.Updated = k.stored.UTC()
	data, err := k.is.Event()
	if err == nil {
		_, err = k.out.Put(k.session.Host.Life, call.Item{Data: data, Final: k.is.Status.IsTerminal()})
	}
	return err
}

// set stores another state, unless the task is over. One that is too large fails the task.
func (k *task) set(status mcp.Status, message string, change func(*mcp.StoredTask)) {
	if k.is.Status.IsTerminal() {
		return
	}
	err := k.change(status, message, change)
	if errors.Is(err, upstream.ErrTooLarge) {
		k.session.Host.Metrics.Failures.WithLabelValues(host.FailTooLarge).Inc()
		why := k.session.Host.TooLarge(k.session.Name)
		_, failure := translate.Outcome(rpc.ErrorMessage(nil, rpc.CodeInternal, why, nil))
		err = k.change(mcp.TaskFailed, why, func(is *mcp.StoredTask) { is.Result, is.Error = nil, failure })
	}
	if err != nil {
		k.session.Host.Logger.Warn("the state of a task is not stored", "session", k.session.Name, "status", string(status), "error", err)
	}
}

func (k *task) change(status mcp.Status, message string, change func(*mcp.StoredTask)) error {
	k.is.Status, k.is.Message, k.is.Requests, k.is.Asked = status, message, nil, nil
	if status.IsTerminal() {
		k.is.TTL = new((time.Since(k.is.Created) + TaskTTL(k.session.Host)).Milliseconds())
	}
	if change != nil {
		change(&k.is)
	}
	return k.store()
}

// working notes that the client has no open question.
func (k *task) working() { k.set(mcp.TaskWorking, "", nil) }

// storeQuestions stores questions to the client, and reports whether the task continues: questions that are too large end
// it. ids are those of the MCP server.
func (k *task) storeQuestions(requests map[string]json.RawMessage, ids map[string]json.RawMessage) bool {
	k.set(mcp.TaskInputRequired, "", func(is *mcp.StoredTask) { is.Requests, is.Asked = requests, ids })
	return !k.is.Status.IsTerminal()
}

// respond ends the task with the response to its request.
func (k *task) respond(response []byte) {
	result, failure := translate.Outcome(response)
	if failure == nil {
		k.set(mcp.TaskCompleted, "", func(is *mcp.StoredTask) { is.Result = result })
		return
	}
	var e translate.Failure
	_ = rpc.Unmarshal(failure, &e) // else the state has no message
	k.set(mcp.TaskFailed, e.Message, func(is *mcp.StoredTask) { is.Error = failure })
}

// cancel ends the task without a response.
func (k *task) cancel(why string) { k.set(mcp.TaskCancelled, why, nil) }

// refresh stores an unchanged state again before the log's floor passes it: by half of
// the age limit, or when the state is in the oldest quarter of its partition. The bytes limit removes
// less than a quarter at a time.
func (k *task) refresh(now time.Time) {
	s := k.session.Host
	if k.is.Status.IsTerminal() || now.Sub(k.checked) < TaskCheck {
		return
	}
	k.checked = now
	age := s.Backend.Log.Settings().MaxAge
	due := age > 0 && now.Sub(k.stored) >= age/2
	if !due {
		ctx, cancel := context.WithTimeout(s.Life, s.Config.AckTimeout)
		defer cancel()
		state, err := s.Backend.Log.Look(ctx, s.Backend.Log.Partition(k.session.Name))
		due = err == nil && k.out.Last < state.First+(state.Last-state.First)/4
	}
	if due {
		_ = k.store() // again the next time, and before it is too late
	}
}

// TaskTTL is how long the log keeps the last state of a task.
func TaskTTL(h *host.Host) time.Duration {
	if age := h.Backend.Log.Settings().MaxAge; age > 0 {
		return min(h.Config.TaskTTL, age)
	}
	return h.Config.TaskTTL
}

// created returns the response to the request that became the task: without the members that only tasks/get has.
func (k *task) created() []byte {
	is := k.is.Task
	is.Requests, is.Result, is.Error = nil, nil, nil
	return translate.Message(map[string]any{"id": nil, "result": is.CreatedResult()})
}

// taskState is the state of every call that may be a task.
type taskState struct {
	mu     sync.Mutex   // guards the call
	made   *task        // the task that the call has become; nil for none
	over   bool         // the client has the response, or the task its last state
	due    *time.Timer  // until the call becomes a task
	expiry *pause.Timer // until a call that waits for its client is given up
}

// IsTask reports whether the call has become a task.
func (s *taskState) IsTask() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made != nil
}

// RefreshTask stores the state of the task again if it has not changed for long.
func (s *taskState) RefreshTask(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made.refresh(now)
}

// NoInput is the reason for the cancellation of a task whose client does not answer.
const NoInput = "the client did not answer in time what it was asked"

// awaitInput cancels the task unless its client answers in time. The caller holds the lock.
func (s *taskState) awaitInput(cancel func(why string)) {
	if s.expiry != nil {
		s.expiry.Stop()
	}
	h := s.made.session.Host
	s.expiry = h.Pauses.AfterFunc(h.Config.InputWait, func() {
		s.mu.Lock()
		waits := s.made.is.Status == mcp.TaskInputRequired // else the client has answered at this moment
		s.mu.Unlock()
		if waits {
			cancel(NoInput)
		}
	})
}

// stop ends the timers of a call that is over.
func (s *taskState) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due != nil {
		s.due.Stop()
	}
	if s.expiry != nil {
		s.expiry.Stop()
	}
}

// taskWork is a call that may be a task. It is safe for concurrent use.
type taskWork interface {
	call.Receiver
	// makeTask makes the call a task, unless the call is over.
	makeTask()
	// IsTask reports whether the call is a task.
	IsTask() bool
	// updateTask takes a client's answers to the server's questions. The error reports why they are not taken.
	updateTask(answers translate.Object) error
	// cancelTask ends the call.
	cancelTask(why string)
	// RefreshTask stores the state again if it has not changed for long.
	RefreshTask(now time.Time)
}
