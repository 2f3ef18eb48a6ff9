package mcpedge

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/natsconn"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// The tasks extension. Any edge finds the newest state of a task in the log; only requests that
// change the task need a bridge.

// taskPost answers a request about the task of a session.
func (s *Service) taskPost(c *fiber.Ctx, who caller, ask rpc.Ask, r mcp.Request) (result string, err error) {
	rec, err := s.sessionOf(c, ask.Session, who.grants)
	switch ended := errors.Is(err, refusal.ErrNoSession); {
	case ended && rec.Session == "":
		return postRefused, refusal.FromMCP(mcp.ErrTask, r.ID)
	case err != nil && !ended: // in an ended session the task is over
		return postRefused, err
	}
	by, err := s.subs.Admit(c, rec.Session)
	if err != nil {
		return postRefused, err
	}
	leave := func() { s.subs.Admission.Leave(by.Visit) }
	defer func() {
		if err != nil {
			leave()
		}
	}()
	is, err := s.taskOf(by.Client, rec)
	switch {
	case errors.Is(err, eventlog.ErrNotFound):
		return postRefused, refusal.FromMCP(mcp.ErrTask, r.ID)
	case err != nil:
		return postRefused, err
	}
	if !is.Status.IsTerminal() && rec.State != session.Open {
		is = is.Failed(mcp.TaskEnded)
	}
	switch {
	case r.Method == mcp.MethodGetTask:
		if !is.Status.IsTerminal() && s.hasLost(rec.Session) {
			is = is.Failed(mcp.TaskLost)
		}
		return direct(c, response(r.ID, is.GetResult()), leave)
	case is.Status.IsTerminal():
		return direct(c, response(r.ID, json.RawMessage(`{"resultType":"complete"}`)), leave)
	}
	ask.Life, ask.Held = rec.Life, true
	answer, err := s.ask(c.UserContext(), ask, bridgeTimeout)
	if err != nil {
		return postRefused, err
	}
	if answer.Status != http.StatusOK {
		return postRefused, pass(c, answer, leave)
	}
	return direct(c, answer.Data, leave)
}

// taskOf returns the newest state of a session's task, for a client. The error wraps [eventlog.ErrNotFound] where
// there is none.
func (s *Service) taskOf(client string, rec session.Record) (mcp.Task, error) {
	e, err := s.newest(client, window.Place{Session: rec.Session, Life: rec.Life, Stream: mcp.TaskStream})
	if err != nil {
		return mcp.Task{}, err
	}
	is, err := mcp.ParseTask(e.Data)
	if err != nil {
		return mcp.Task{}, eventlog.ErrNotFound // another publisher has used the stream
	}
	return is.Task, nil
}

// hasLost reports whether no bridge has listened for a session for long. It asks each time. Once no bridge listens,
// the edge also asks by itself, until one does or the session counts as lost: clients may ask seldom, or another edge.
func (s *Service) hasLost(name string) bool {
	lost, begun := s.askFor(name)
	if begun != nil {
		s.attached.work.Go(func() {
			for s.unheard.lasts(name, begun) && natsconn.Pause(s.subs.Base, min(recheckEvery, s.unheardFor/8)) {
				s.askFor(name)
			}
		})
	}
	return lost
}

// askFor asks for the bridge of a session; see [unheard.note].
func (s *Service) askFor(name string) (lost bool, begun *absence) {
	ctx, cancel := context.WithTimeout(s.subs.Base, takenTimeout)
	defer cancel()
	_, err := rpc.Ask{Action: rpc.Check, Session: name, Stream: mcp.TaskStream}.Do(ctx, s.nc)
	return s.unheard.note(name, errors.Is(err, rpc.ErrNobody), time.Now(), s.unheardFor)
}
