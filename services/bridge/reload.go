package bridge

import (
	"bytes"
	"context"
	"errors"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
)

// hasFinal reports whether the log has the last event of a call's stream, or its end.
func (c *call) hasFinal(ctx context.Context) (bool, error) {
	if ended, err := c.hasEnd(ctx); ended || err != nil {
		return ended, err
	}
	e, err := c.session.host.backend.Log.Newest(ctx, c.subject())
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return e.Final, err
}

// hasEnd reports whether a call's stream was ended without a last event: its client has
// cancelled it.
func (c *call) hasEnd(ctx context.Context) (bool, error) {
	end := c.subject()
	end.Kind = event.End
	_, err := c.session.host.backend.Log.Last(ctx, end)
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// subject is where the stream's events are in the log.
func (c *call) subject() event.Subject {
	h := c.session
	return event.Subject{Partition: h.host.backend.Log.Partition(h.name), Session: h.name, Life: h.life, Stream: c.stream}
}

// reload reads what the log has of a stream: which requests are answered, and what the
// upstream may send once more. It reports whether the stream can go on.
func (c *call) reload(ctx context.Context) bool {
	s := c.session.host
	over := false
	err := retry(ctx, func() (err error) {
		if over, err = c.hasEnd(ctx); err == nil && !over {
			over, err = c.reloadOnce(ctx)
		}
		if err != nil {
			s.log.Debug("a stream cannot be read yet", "session", c.session.name, "stream", c.stream, "error", err)
		}
		return err
	})
	return err == nil && !over
}

func (c *call) reloadOnce(ctx context.Context) (final bool, err error) {
	s := c.session.host
	state, err := s.backend.Log.Look(ctx, s.backend.Log.Partition(c.session.name))
	if err != nil {
		return false, err
	}
	q := eventlog.Query{Session: c.session.name, Life: c.session.life, Stream: c.stream, UpTo: state.Last, MaxEvents: 500, MaxBytes: reloadBytes}
	if c.standalone() {
		q.After = c.at.Sequence // others may write there, and nothing is a response
	}
	c.out.last = state.Last
	var again [][]byte
	for q.After < q.UpTo {
		page, err := s.backend.Log.Read(ctx, q)
		if err != nil {
			return false, err
		}
		for _, e := range page.Entries {
			if e.Subject.Kind != event.Message {
				continue
			}
			if final = e.Final && !(c.session.isTask() && isTaskCreated(e.Data)); e.Final && !final {
				continue // the call has become a task: the MCP server still works on it
			}
			if e.Sequence > c.at.Sequence {
				again = append(again, e.Data)
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
	c.again = again
	c.mu.Unlock()
	return final, nil
}

// repeated reports whether a message is one that the log had when the call was taken over.
func (c *call) repeated(data []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, has := range c.again {
		if bytes.Equal(has, data) {
			c.again = c.again[i+1:]
			return true
		}
	}
	return false
}

// isTaskCreated reports whether an event is the response that names a task.
func isTaskCreated(data []byte) bool {
	m, err := rpc.ParseMessage(data)
	var r struct {
		Type string `json:"resultType"`
	}
	return err == nil && m.Result != nil && rpc.Unmarshal(m.Result, &r) == nil && r.Type == "task"
}
