package mcp

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"rejoin/shared/event"
	"rejoin/shared/rpc"
)

// ExtensionTasks is the extension by which a server answers a call with a task, whose state the
// client requests (ext-tasks, specification/draft/tasks).
const ExtensionTasks = MetaPrefix + "tasks"

// IsTaskMethod reports whether a method is one of the extension's.
func IsTaskMethod(method string) bool {
	return method == MethodGetTask || method == MethodUpdateTask || method == MethodCancelTask
}

// TaskStream is the stream of a session that gets the states of its task.
const TaskStream = "task"

// Status is the status of a task.
type Status string

// The statuses. The last three are final.
const (
	TaskWorking       Status = "working"
	TaskInputRequired Status = "input_required"
	TaskCompleted     Status = "completed"
	TaskFailed        Status = "failed"
	TaskCancelled     Status = "cancelled"
)

// IsTerminal reports whether a status is final.
func (s Status) IsTerminal() bool { return s != TaskWorking && s != TaskInputRequired }

// Task is the state of a task, as tasks/get and notifications/tasks have it.
type Task struct {
	ID      string    `json:"taskId"`
	Status  Status    `json:"status"`
	Message string    `json:"statusMessage,omitempty"`
	Created time.Time `json:"createdAt"`
	Updated time.Time `json:"lastUpdatedAt"`
	// TTL is how long after Created the task is kept, in milliseconds; nil for no limit.
	TTL *int64 `json:"ttlMs"`
	// Poll is how often to ask, in milliseconds.
	Poll int64 `json:"pollIntervalMs,omitempty"`
	// Requests are the server's, of a task that is [TaskInputRequired].
	Requests map[string]json.RawMessage `json:"inputRequests,omitempty"`
	// Result is that of a task that is [TaskCompleted], Error that of one that is [TaskFailed].
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// StoredTask is a state as the log has it.
type StoredTask struct {
	Task
	// Asked are the IDs that the MCP server has given Requests, for the bridge that continues.
	Asked map[string]json.RawMessage `json:"asked,omitempty"`
}

// Event returns the state as an event of [TaskStream].
func (t StoredTask) Event() ([]byte, error) { return event.EncodeJSON(notification(t)) }

// Notification returns the state as a message to a client that listens with the request id.
func (t Task) Notification(id json.RawMessage) []byte {
	return event.MustJSON(notification(struct {
		Task
		Meta map[string]json.RawMessage `json:"_meta"`
	}{t, map[string]json.RawMessage{MetaSubscription: id}}))
}

func notification(params any) any {
	return struct {
		JSONRPC string `json:"jsonrpc"`
		Method  string `json:"method"`
		Params  any    `json:"params"`
	}{"2.0", MethodTask, params}
}

// ErrNoTask is returned for an event that is not the state of a task.
var ErrNoTask = errors.New("the event is not the state of a task")

// ParseTask reads an event of [TaskStream]. The error is [ErrNoTask].
func ParseTask(data []byte) (t StoredTask, err error) {
	m, err := rpc.ParseMessage(data)
	if err != nil || !m.Is(MethodTask) || rpc.Unmarshal(m.Params, &t) != nil || t.ID == "" || t.Status == "" {
		return StoredTask{}, ErrNoTask
	}
	return t, nil
}

// CreatedResult returns the result of the request that became the task.
func (t Task) CreatedResult() json.RawMessage { return t.result("task") }

// GetResult returns the result of tasks/get.
func (t Task) GetResult() json.RawMessage { return t.result("complete") }

func (t Task) result(kind string) json.RawMessage {
	return event.MustJSON(struct {
		Type string `json:"resultType"`
		Task
	}{kind, t})
}

// TaskID names the task of a session. It is no sealed secret, but a name that cannot be
// guessed, as a [State] is.
func TaskID(session string) string { return statePrefix + session }

// ParseTaskID returns the session of a task; false for the task of an MCP server.
func ParseTaskID(id string) (session string, ours bool) {
	session, ours = strings.CutPrefix(id, statePrefix)
	return session, ours && uuid.Validate(session) == nil
}

// ErrTask is the answer to a request about a task that is not known.
var ErrTask = invalid("the taskId is not known: there is no such task, or it has expired.")

// TaskEnded is the error of a task whose session was ended before it had a last state.
const TaskEnded = "The session of the task was closed."

// TaskLost is the error of a task that no bridge has any more.
const TaskLost = "The request was lost."

// Failed returns the state of a task that will never have another one.
func (t Task) Failed(why string) Task {
	t.Status, t.Message, t.Requests = TaskFailed, why, nil
	t.Error = event.MustJSON(map[string]any{"code": rpc.CodeInternal, "message": why})
	return t
}

// ListensToTasks returns the tasks that a request to listen names.
func (r Request) ListensToTasks() []string {
	var n struct {
		Tasks []string `json:"taskIds"`
	}
	if r.Method != MethodListen || rpc.Unmarshal(r.Params["notifications"], &n) != nil {
		return nil
	}
	return n.Tasks
}

// NeedsTasks reports whether only clients with the extension may make a request.
func (r Request) NeedsTasks() bool { return IsTaskMethod(r.Method) || len(r.ListensToTasks()) > 0 }

// DeclaresTasks reports whether the client of a request takes a task for a response.
func (r Request) DeclaresTasks() bool {
	return HasTasks(r.Capabilities)
}

// HasTasks reports whether the capabilities of a client or a server have the extension.
func HasTasks(capabilities json.RawMessage) bool {
	var c struct {
		Extensions map[string]json.RawMessage `json:"extensions"`
	}
	return rpc.Unmarshal(capabilities, &c) == nil && isObject(c.Extensions[ExtensionTasks])
}

// ErrNeedsTasks is the answer to a request whose client does not declare the extension.
var ErrNeedsTasks = &Error{
	Status: http.StatusBadRequest, Code: CodeMissingCapability, Message: "Missing required client capability: " + ExtensionTasks,
	Data: map[string]any{"requiredCapabilities": map[string]any{"extensions": map[string]any{ExtensionTasks: struct{}{}}}},
}
