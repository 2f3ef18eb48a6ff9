package call

import (
	"context"
	"errors"

	"rejoin/services/bridge/retry"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
)

// HasFinal reports whether the log has the last event of a call's stream, or its end.
func (c *Call) HasFinal(ctx context.Context) (bool, error) {
	if ended, err := c.hasEnd(ctx); ended || err != nil {
		return ended, err
	}
	e, err := c.Scope.Host.Backend.Log.Newest(ctx, c.subject())
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return e.Final, err
}

// hasEnd reports whether a call's stream was ended without a last event: its client has
// cancelled it.
func (c *Call) hasEnd(ctx context.Context) (bool, error) {
	end := c.subject()
	end.Kind = event.End
	return c.Scope.Host.Backend.Log.Has(ctx, end)
}

// subject returns the subject of the stream's events in the log.
func (c *Call) subject() event.Subject {
	h := c.Scope
	return event.Subject{Partition: h.Host.Backend.Log.Partition(h.Name), Session: h.Name, Life: h.Life, Stream: c.Stream}
}

// Reload reads the events of a stream from the log: they show which requests are answered, and which
// messages the upstream may send again. It reports whether the stream can continue.
func (c *Call) Reload(ctx context.Context) bool {
	s := c.Scope.Host
	over := false
	err := retry.Do(ctx, func() (err error) {
		if over, err = c.hasEnd(ctx); err == nil && !over {
			over, err = c.ReloadOnce(ctx)
		}
		if err != nil {
			s.Logger.Debug("a stream cannot be read yet", "session", c.Scope.Name, "stream", c.Stream, "error", err)
		}
		return err
	})
	return err == nil && !over
}

// IsUnknown reports whether the last event of the stream may be stored though the log did not acknowledge it before the
// service stopped.
func (c *Call) IsUnknown() bool { return c.out.unknown }

// ReloadOnce is one attempt to read them. final says that the log has the last event.
func (c *Call) ReloadOnce(ctx context.Context) (final bool, err error) {
	s := c.Scope.Host
	select {
	case s.Reloads <- struct{}{}:
		defer func() { <-s.Reloads }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	state, err := s.Backend.Log.Look(ctx, s.Backend.Log.Partition(c.Scope.Name))
	if err != nil {
		return false, err
	}
	q := eventlog.Query{Session: c.Scope.Name, Life: c.Scope.Life, Stream: c.Stream, UpTo: state.Last, MaxEvents: 500, MaxBytes: reloadBytes}
	switch { // others may write to the standalone stream, and it has no responses
	case c.Standalone() && c.at.ID == "":
		q.After = state.Last
	case c.Standalone():
		q.After = c.at.Sequence
	}
	c.out.Last = state.Last
	again := map[string]bool{}
	named := false
	for q.After < q.UpTo {
		page, err := s.Backend.Log.Read(ctx, q)
		if err != nil {
			return false, err
		}
		for _, e := range page.Entries {
			if e.Subject.Kind != event.Message {
				continue
			}
			if final = e.Final && (!c.Scope.Session.IsTask() || !isTaskCreated(e.Data)); e.Final && !final {
				named = true
				continue // the call has become a task: the MCP server still works on it
			}
			// The stream of a call on demand also has the standalone stream's events, which have a cursor of their own.
			if c.at.ID != "" && (c.Scope.OneCall || e.Sequence > c.at.Sequence) { // else the upstream resumes nothing
				again[e.MessageID] = true
			}
			if m, err := rpc.ParseMessage(e.Data); err == nil && m.IsResponse() {
				c.answeredTo(m.ID)
			}
		}
		if page.Through <= q.After {
			break
		}
		q.After = page.Through
	}
	c.mu.Lock()
	c.again, c.named = again, named
	c.mu.Unlock()
	return final, nil
}

// HasNamedTask reports whether the log had the response that names the call's task when the call was taken
// over.
func (c *Call) HasNamedTask() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.named
}

// Repeated reports whether an event of the upstream is one that the log had when the call was taken over. An event with
// an ID comes again once. The others may come whenever the upstream's stream is resumed before them, so they are
// never forgotten.
func (c *Call) Repeated(it Item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.again) == 0 || it.ID == "" {
		return false
	}
	key, index := it.key()
	id := eventlog.MessageID(c.Scope.Name, c.Scope.Life, c.Stream, key, index)
	repeated := c.again[id]
	if !it.After {
		delete(c.again, id)
	}
	return repeated
}

// isTaskCreated reports whether an event is the response that names a task.
func isTaskCreated(data []byte) bool {
	m, err := rpc.ParseMessage(data)
	var r struct {
		Type string `json:"resultType"`
	}
	return err == nil && m.Result != nil && rpc.Unmarshal(m.Result, &r) == nil && r.Type == "task"
}
