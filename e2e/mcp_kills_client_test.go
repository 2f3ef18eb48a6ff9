package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	mcprev "rejoin/shared/mcp"
	"rejoin/shared/natsconn"
	"rejoin/shared/rpc"
	"rejoin/shared/sse"
)

// killedCall is a call, and the messages that its client has received.
type killedCall struct {
	k                *killing
	name, gate       string
	stateless, tasks bool
	session          string
	begun            chan struct{} // closed when a cut loses nothing any more, or the call is over

	// Of the goroutine that kills: old means that it waited for the call, young that something was
	// killed before, lost that its bridge was killed and no other can continue it.
	old, young, lost bool
	kills            []time.Time // of its bridge

	// Of run, until it ends:
	lastID          string
	resumed         []string // after how many steps, and with which event ID
	task            string   // the ID of the task that the call has become
	progress        []float64
	results, errors []string
	ended           time.Time
}

func (c *killedCall) kind() string {
	switch {
	case c.task != "":
		return "task " + c.task
	case c.tasks:
		return "may be a task"
	case c.stateless:
		return mcprev.Stateless
	}
	return "session " + c.session
}

// run makes the call and resumes it until there is its response.
func (c *killedCall) run(ctx context.Context) {
	body := c.request(mcprev.MethodCallTool, map[string]any{
		"name":      "count",
		"arguments": counting{Call: c.name, Gate: c.gate, Steps: *killsSteps, Pause: int(killsPause.Milliseconds())},
	}, true)
	resp, err := c.send(ctx, http.MethodPost, body, mcprev.MethodCallTool, "count")
	for err == nil && resp.StatusCode == http.StatusServiceUnavailable { // NATS was killed, and no bridge has the request
		_ = resp.Body.Close()
		natsconn.Pause(ctx, 50*time.Millisecond)
		resp, err = c.send(ctx, http.MethodPost, body, mcprev.MethodCallTool, "count")
	}
	began := sync.OnceFunc(func() { close(c.begun) })
	defer began()
	over := c.take(resp, err, began)
	for !over && ctx.Err() == nil {
		if c.lastID == "" {
			c.fail("it was cut before it had an event ID")
			return
		}
		natsconn.Pause(ctx, 50*time.Millisecond) // as the edge asks for with retry
		c.resumed = append(c.resumed, fmt.Sprintf("%d: %s", len(c.progress), c.lastID))
		resp, err = c.send(ctx, http.MethodGet, nil, "", "") //nolint:bodyclose // take closes it
		over = c.take(resp, err, began)
	}
	for c.task != "" && ctx.Err() == nil && !c.poll(ctx) {
		natsconn.Pause(ctx, 500*time.Millisecond)
	}
}

// fail notes an error that ends the call.
func (c *killedCall) fail(format string, args ...any) {
	c.errors = append(c.errors, fmt.Sprintf(format, args...))
	c.ended = time.Now()
}

// request returns the body of a request.
func (c *killedCall) request(method string, params map[string]any, progress bool) []byte {
	meta := map[string]any{}
	if progress {
		meta["progressToken"] = c.name
	}
	if c.stateless {
		capabilities := map[string]any{}
		if c.tasks {
			capabilities["extensions"] = map[string]any{mcprev.ExtensionTasks: struct{}{}}
		}
		meta[mcprev.MetaVersion], meta[mcprev.MetaCapabilities] = mcprev.Stateless, capabilities
		meta[mcprev.MetaClientInfo] = map[string]string{"name": "kills", "version": "1"}
	}
	params["_meta"] = meta
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": c.name, "method": method, "params": params})
	if err != nil {
		panic(err)
	}
	return body
}

func (c *killedCall) send(ctx context.Context, httpMethod string, body []byte, method, name string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, httpMethod, c.k.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", jsonType+", text/event-stream")
	if body != nil {
		req.Header.Set("Content-Type", jsonType)
	} else {
		req.Header.Set("Last-Event-ID", c.lastID)
	}
	if c.stateless {
		req.Header.Set(mcprev.HeaderVersion, mcprev.Stateless)
		if method != "" {
			req.Header.Set(mcprev.HeaderMethod, method)
			req.Header.Set(mcprev.HeaderName, name)
		}
	} else {
		req.Header.Set(mcprev.HeaderVersion, revisionSessions)
		req.Header.Set("Mcp-Session-Id", c.session)
	}
	return c.k.http.Do(req)
}

// take reads an answer, and reports whether the client has no reason to reconnect.
func (c *killedCall) take(resp *http.Response, err error, began func()) (over bool) {
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusNoContent {
		if len(c.results)+len(c.errors) == 0 && c.task == "" {
			c.fail("nothing is left, and there was no response")
		}
		return true
	}
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		data, err := io.ReadAll(resp.Body)
		switch {
		case err != nil, c.lastID != "" && resp.StatusCode >= http.StatusInternalServerError:
			return false
		case resp.StatusCode != http.StatusOK:
			c.fail("%s: %s", resp.Status, data)
			return true
		}
		return c.message(data)
	}
	events := sse.NewDecoder(resp.Body, 1<<20)
	for {
		e, err := events.Next()
		if id := events.LastID(); id != "" {
			c.lastID = id
			began()
		}
		if err != nil {
			return over
		}
		if len(e.Data) > 0 && c.message(e.Data) {
			over = true // and no message should follow
		}
	}
}

// message takes a message, and reports whether it is the response.
func (c *killedCall) message(data []byte) bool {
	m, err := rpc.ParseMessage(data)
	var id string
	_ = json.Unmarshal(m.ID, &id) // then the message is not of this call
	switch {
	case err != nil:
		c.fail("%q: %v", data, err)
		return true
	case m.Is("notifications/progress"):
		var p float64
		_ = json.Unmarshal(m.Param("progress"), &p)
		c.progress = append(c.progress, p)
		return false
	case !m.IsResponse():
		return false
	case id != c.name:
		c.fail("the response is to %s: %s", m.ID, data)
	case m.Error != nil:
		c.fail("%s", m.Error)
	default:
		c.result(m.Result)
	}
	return true
}

// result takes the result of the call, or of the task that it has become.
func (c *killedCall) result(data json.RawMessage) {
	var r struct {
		Type    string `json:"resultType"`
		IsError bool   `json:"isError"`
		Content []struct{ Text string }
		TaskID  string
	}
	switch err := json.Unmarshal(data, &r); {
	case err == nil && r.Type == "task":
		c.task = r.TaskID
	case err != nil || r.IsError || len(r.Content) != 1:
		c.fail("the result is %s", data)
	default:
		c.results = append(c.results, r.Content[0].Text)
		c.ended = time.Now()
	}
}

// poll asks for the task, and reports whether it is over.
func (c *killedCall) poll(ctx context.Context) (over bool) {
	resp, err := c.send(ctx, http.MethodPost, c.request(mcprev.MethodGetTask, map[string]any{"taskId": c.task}, false), mcprev.MethodGetTask, c.task)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= http.StatusInternalServerError {
		return false
	}
	m, err := rpc.ParseMessage(data)
	var is mcprev.Task
	if err != nil || m.Result == nil || json.Unmarshal(m.Result, &is) != nil {
		c.fail("tasks/get is answered %s %s", resp.Status, data)
		return true
	}
	switch {
	case !is.Status.IsTerminal():
		return false
	case is.Status == mcprev.TaskCompleted:
		c.result(is.Result)
	default:
		c.fail("%s: %s", is.Status, is.Error)
	}
	return true
}

// comeBack resumes the response once more, after the end.
func (c *killedCall) comeBack(ctx context.Context) {
	if c.lastID == "" || len(c.results) == 0 {
		return
	}
	resp, err := c.send(ctx, http.MethodGet, nil, "", "") //nolint:bodyclose // take closes it
	if err != nil {
		c.fail("after the end: %v", err)
		return
	}
	c.take(resp, nil, func() {})
}
