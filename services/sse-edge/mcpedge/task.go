package mcpedge

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/sse"
	"rejoin/shared/web"
)

// The tasks extension. Any edge finds the newest state of a task in the log; a bridge has to be
// there only for what changes the task.

// taskPost answers a request about the task of a session.
func (s *Service) taskPost(c *fiber.Ctx, who caller, call rpc.Call, r mcp.Request) (result string, err error) {
	rec, err := s.sessionOf(c, call.Session, who.grants)
	if errors.Is(err, errNoSession) && rec.Session != "" {
		err = nil // the task is over
	}
	var is mcp.Task
	if err == nil {
		is, err = s.taskOf(rec)
	}
	switch {
	case errors.Is(err, errNoSession), errors.Is(err, eventlog.ErrNotFound):
		return postRefused, asRefused(mcp.ErrTask, r.ID)
	case err != nil:
		return postRefused, err
	}
	if !is.Status.Over() && rec.State != session.Open {
		is = is.Failed(mcp.TaskEnded)
	}
	switch {
	case r.Method == mcp.MethodGetTask:
		if !is.Status.Over() && s.hasLost(rec.Session) {
			is = is.Failed(mcp.TaskLost)
		}
		return direct(c, response(r.ID, is.GetResult()))
	case is.Status.Over():
		return direct(c, response(r.ID, json.RawMessage(`{"resultType":"complete"}`)))
	}
	if call.Stream, err = rpc.NewStream([]json.RawMessage{r.ID}, false); err != nil {
		return postRefused, refuseInvalid("Invalid request: " + err.Error())
	}
	call.Life, call.Held = rec.Life, true
	answer, err := s.ask(c.UserContext(), call, bridgeTimeout)
	if err != nil {
		return postRefused, err
	}
	if answer.Status != http.StatusOK {
		return postRefused, pass(c, answer)
	}
	return direct(c, answer.Data)
}

// direct answers with a response, as JSON unless the client prefers a stream.
func direct(c *fiber.Ctx, data []byte) (result string, err error) {
	if subscriber.PrefersStream(c.Get(fiber.HeaderAccept)) {
		subscriber.EventStream(&c.Response().Header)
		return postStream, c.Send(append(sse.AppendData(nil, data), '\n'))
	}
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return postJSON, c.Status(http.StatusOK).Send(data)
}

func response(id, result json.RawMessage) []byte {
	b, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "result": result}) // what was read can be written
	return b
}

// taskOf returns the newest state of a session's task. The error wraps [eventlog.ErrNotFound] where
// there is none.
func (s *Service) taskOf(rec session.Record) (mcp.Task, error) {
	ctx, cancel := context.WithTimeout(s.subs.Base, subscriber.OpenTimeout)
	defer cancel()
	at := event.Subject{Partition: s.log.Partition(rec.Session), Session: rec.Session, Life: rec.Life, Stream: mcp.TaskStream, Kind: event.Message}
	sequence, err := s.log.Last(ctx, at)
	var e eventlog.Entry
	if err == nil {
		e, err = s.log.At(ctx, at.Partition, sequence)
	}
	if err != nil {
		if cursor.Transient(err) && !errors.Is(err, eventlog.ErrNotFound) {
			err = web.Wrap(err, web.CodeUnavailable, "The log cannot be read at the moment.")
		}
		return mcp.Task{}, err
	}
	is, err := mcp.ParseTask(e.Data)
	if err != nil {
		return mcp.Task{}, eventlog.ErrNotFound // somebody has published there
	}
	return is.Task, nil
}

// hasLost reports whether no bridge has listened for a session for long. It asks each time, and once
// more by itself, since clients may ask seldom.
func (s *Service) hasLost(name string) bool {
	ctx, cancel := context.WithTimeout(s.subs.Base, takenTimeout)
	defer cancel()
	_, err := rpc.Call{Action: rpc.Check, Session: name, Stream: mcp.TaskStream}.Do(ctx, s.nc)
	limit := s.unheardFor
	lost, begun := s.unheard.note(name, errors.Is(err, rpc.ErrNobody), time.Now(), limit)
	if begun {
		s.attached.work.Go(func() {
			select {
			case <-s.subs.Base.Done():
			case <-time.After(limit):
				s.hasLost(name)
			}
		})
	}
	return lost
}

// maxUnheard is for how many sessions an edge remembers that no bridge listens.
const maxUnheard = 10_000

// unheard is since when no bridge listens for the sessions of tasks. It is safe for concurrent use.
type unheard struct {
	mu  sync.Mutex
	all map[string]absence
}

// absence is what is known of a session that no bridge listens for. Between two looks that are
// longer apart than the limit a bridge may have been there.
type absence struct {
	first, last time.Time
	lost        bool
}

// note notes whether nobody listens for a session, and reports whether nobody has for the limit, and
// whether this is the first that is known of it.
func (u *unheard) note(name string, nobody bool, now time.Time, limit time.Duration) (lost, begun bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !nobody {
		delete(u.all, name)
		return false, false
	}
	if u.all == nil {
		u.all = map[string]absence{}
	}
	a, ok := u.all[name]
	if begun = !ok || !a.lost && now.Sub(a.last) > 2*limit; begun {
		if len(u.all) >= maxUnheard {
			clear(u.all) // they are asked about again
		}
		a = absence{first: now}
	}
	a.last, a.lost = now, a.lost || now.Sub(a.first) >= limit
	u.all[name] = a
	return a.lost, begun
}
