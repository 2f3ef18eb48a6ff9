package owners

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/retry"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// Guard keeps the tasks of the MCP server's own from other principals, for one session. To the server,
// all clients may be one, the bridge: which principal has which task is noted when the server names it,
// and a task that is not noted for a client is unknown. Without access control there is one principal,
// and nothing is noted.
type Guard struct {
	host      *host.Host
	notes     *Notes
	ctx       context.Context //nolint:containedctx // of the session
	session   string          // its name, for the log
	principal string
}

// NewGuard returns the guard of a session that belongs to a principal; an empty one without access
// control. ctx ends with the session.
func NewGuard(ctx context.Context, h *host.Host, notes *Notes, session, principal string) *Guard {
	return &Guard{host: h, notes: notes, ctx: ctx, session: session, principal: principal}
}

const (
	// noteWithin is how long the answer that names a task waits until its note is stored, which takes
	// milliseconds: less than an answer may take without the log.
	noteWithin = 100 * time.Millisecond
	// maxUnwritten is how many notes may be left to store later; an answer beyond waits.
	maxUnwritten = 10_000
	// maxPosted is how many requests about tasks a batch may have: for each, the bucket may be read,
	// before the batch takes a place among the open requests.
	maxPosted = 64
	// ownsAtOnce is for how many tasks of a list the bucket is read at a time.
	ownsAtOnce = 16
)

// taskMade is how a response of the MCP server names a task.
type taskMade struct {
	Type string   `json:"resultType"`
	ID   string   `json:"taskId"`
	TTL  *float64 `json:"ttlMs"`
	Task struct { // of 2025-11-25
		ID  string   `json:"taskId"`
		TTL *float64 `json:"ttl"`
	} `json:"task"`
}

// Response takes a response of the MCP server: it notes the task that was made, and returns the
// response, without the tasks of others if it is a list, which only a session can have. An answer does
// not get lost because its note cannot be stored: until then the task is known to this bridge alone.
func (g *Guard) Response(m rpc.Message, data []byte, inSession bool) ([]byte, error) {
	if g.principal == "" || !bytes.Contains(m.Result, []byte("taskId")) {
		return data, nil
	}
	var r taskMade
	read := rpc.Unmarshal(m.Result, &r) == nil
	switch {
	case !inSession:
		if read && r.Type == "task" && r.ID != "" {
			g.keep(r.ID, r.TTL)
		}
	case read && r.Task.ID != "":
		g.keep(r.Task.ID, r.Task.TTL)
	default:
		return g.listed(m, data)
	}
	return data, nil
}

// keep notes a task that the MCP server keeps for a number of milliseconds.
func (g *Guard) keep(id string, ms *float64) {
	s, ttl := g.host, time.Duration(0)
	if ms != nil {
		ttl = time.Duration(min(*ms, 1e12)) * time.Millisecond
	}
	write, written := g.notes.Note(g.principal, id, ttl), make(chan struct{})
	if !s.Go(func() {
		defer close(written)
		err := retry.Do(s.Life, func() error {
			err := write(s.Life)
			if err != nil {
				s.Logger.Info("the owner of a task of the MCP server cannot be stored yet", "session", g.session, "error", err)
			}
			return err
		})
		if err != nil {
			s.Logger.Warn("the owner of a task of the MCP server is not stored: its client cannot ask for the task any more", "session", g.session)
		}
	}) {
		return
	}
	within := time.After(noteWithin)
	if g.notes.Unwritten() > maxUnwritten {
		within = nil
	}
	select {
	case <-written:
	case <-within:
	}
}

// listed returns a response to tasks/list of 2025-11-25 without the tasks of other principals. Any
// other response has no such tasks.
func (g *Guard) listed(m rpc.Message, data []byte) ([]byte, error) {
	var result translate.Object
	var all, own []json.RawMessage
	if lists := rpc.Unmarshal(m.Result, &result) == nil && rpc.Unmarshal(result["tasks"], &all) == nil; !lists {
		return data, nil
	}
	owns := make([]bool, len(all))
	var asking errgroup.Group
	asking.SetLimit(ownsAtOnce)
	for i, is := range all {
		var task struct {
			ID string `json:"taskId"`
		}
		if rpc.Unmarshal(is, &task) != nil || task.ID == "" {
			owns[i] = true
			continue
		}
		asking.Go(func() error {
			return retry.Do(g.ctx, func() (err error) {
				owns[i], err = g.notes.Owns(g.ctx, g.principal, task.ID)
				return err
			})
		})
	}
	if asking.Wait() != nil {
		return nil, context.Cause(g.ctx)
	}
	for i, is := range all {
		if owns[i] {
			own = append(own, is)
		}
	}
	if len(own) == len(all) {
		return data, nil
	}
	result["tasks"] = event.MustJSON(append([]json.RawMessage{}, own...))
	return translate.Message(map[string]any{"id": m.ID, "result": result}), nil
}

// Refuse returns the refusal of a request about a task of the MCP server's own, as of one about a task
// that does not exist; nil when the task is the client's.
func (g *Guard) Refuse(ctx context.Context, id string) *rpc.Answer {
	if g.principal == "" {
		return nil
	}
	owns, err := g.notes.Owns(ctx, g.principal, id)
	switch {
	case err != nil:
		return new(upstream.Busy("whose the task is cannot be looked up now"))
	case owns:
		return nil
	}
	return new(UnknownTask())
}

// Posted checks the messages that a client of 2025-11-25 has posted in a session, and returns their
// refusal: for a task that is not the client's own, or for too many requests about tasks.
func (g *Guard) Posted(c *rpc.Ask, all []json.RawMessage, batch bool) *rpc.Answer {
	if g.principal == "" {
		return nil
	}
	looked := 0
	for i, data := range all {
		all[i] = translate.Plain(data)
		m, err := rpc.ParseMessage(all[i])
		if err != nil || m.Method == nil || !strings.HasPrefix(*m.Method, "tasks/") || *m.Method == "tasks/list" {
			continue
		}
		if looked++; looked > maxPosted {
			return new(upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, fmt.Sprintf("a batch may have %d requests about tasks", maxPosted)))
		}
		var id string
		_ = json.Unmarshal(m.Param("taskId"), &id) // no task has an empty one
		if refused := g.Refuse(g.ctx, id); refused != nil {
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

// UnknownTask refuses a request about a task that does not exist, or is another principal's.
func UnknownTask() rpc.Answer {
	return upstream.Failure(mcp.ErrTask.Status, mcp.ErrTask.Code, mcp.ErrTask.Message)
}
