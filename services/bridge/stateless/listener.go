package stateless

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/standby"
	"rejoin/services/bridge/translate"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// listener is the client's side of a request to listen, of a client without sessions. Notifications
// of changes come from the MCP server. The bridge adds the states of its own tasks, and reports
// each kind of change once to a client that may have missed some. It is safe for concurrent use.
type listener struct {
	*env
	call  *call.Call
	id    json.RawMessage // of the request, which names the subscription
	owner string
	tasks []watched

	storing sync.Mutex // events of the MCP server and of tasks are stored one at a time
	acked   bool
}

// watched is a task whose states a client receives.
type watched struct {
	id       string
	at       event.Subject
	bridge   string    // the name of the bridge that has it; empty for none
	sequence uint64    // of the last state that the client received
	asked    time.Time // when the task's bridge was asked for last
	absent   int       // how many questions in a row found no bridge of that name
}

// MaxWatched is how many tasks a request may listen to, of those that it names: of Rejoin's and, with
// access control, of the MCP server's own. The acknowledgement leaves the others out.
const MaxWatched = 64

// newListener reads a request to listen.
func newListener(ctx context.Context, e *env, h *sessions.Session, c *call.Call, r mcp.Request) *listener {
	l := &listener{env: e, call: c, id: r.ID, owner: h.Demand.Asked().Owner}
	asked := map[string]bool{}
	for _, id := range r.ListensToTasks() {
		name, ours := mcp.ParseTaskID(id)
		if !ours || len(asked) == MaxWatched || asked[id] {
			continue
		}
		asked[id] = true
		rec, err := e.host.Backend.Sessions.Get(ctx, name)
		if err != nil || rec.Owner != l.owner {
			continue
		}
		w := watched{id: id, at: e.taskSubject(name, rec.Life)}
		var meta records.Metadata
		if json.Unmarshal(rec.Metadata, &meta) == nil {
			w.bridge = meta.MCP.Bridge
		}
		l.tasks = append(l.tasks, w)
	}
	return l
}

// taskIDs returns the tasks whose states the client receives.
func (l *listener) taskIDs() []string {
	ids := make([]string, len(l.tasks))
	for i, w := range l.tasks {
		ids[i] = w.id
	}
	return ids
}

// acknowledge stores the acknowledgement, which is the first event, and begins to report. f selects the
// changes that the MCP server reports.
func (l *listener) acknowledge(ctx context.Context, it call.Item, f translate.Filter) error {
	f.Tasks = nil // they report themselves
	// Without room for its session a client leaves no note either: it could make up any number of them.
	if _, err := l.call.Scope.Session.AnswerOrOpen(l.call, call.Item{}); err != nil {
		return err
	}
	missed := l.remember(ctx, f)
	l.storing.Lock()
	defer l.storing.Unlock()
	l.acked = true
	if err := l.call.StoreOrDrop(it); err != nil {
		return err
	}
	if missed {
		for _, change := range f.Changes() {
			m, err := rpc.ParseMessage(change)
			if err == nil {
				l.host.NoteChange(m)
				err = l.call.StoreOrDrop(call.Item{Data: translate.Listened(m, f, l.id)})
			}
			if err != nil {
				return err
			}
		}
	}
	l.call.Scope.Go(func() { l.report(ctx, f) })
	return nil
}

// Put stores an event.
func (l *listener) Put(it call.Item) error {
	l.storing.Lock()
	defer l.storing.Unlock()
	return l.call.StoreOrDrop(it)
}

// Take takes a message of an MCP server that speaks the revision.
func (l *listener) Take(m rpc.Message, it call.Item) error {
	if it.Final = m.IsResponse(); !l.acked && m.Is(translate.MethodAcknowledged) {
		data, f := translate.AlsoAcknowledged(it.Data, l.taskIDs())
		it.Data = data
		return l.acknowledge(l.call.Scope.Ctx, it, f)
	}
	return l.Put(it)
}

// report stores the states of tasks, and remembers the listener again, until ctx ends.
func (l *listener) report(ctx context.Context, f translate.Filter) {
	s := l.host
	var again <-chan time.Time
	if s.Config.ListenMemory > 0 {
		again = s.Times.After(s.Config.ListenMemory / 2)
	}
	for {
		var poll <-chan time.Time
		if l.reportTasks(ctx); len(l.tasks) > 0 {
			poll = s.Times.After(TaskPoll)
		}
		select {
		case <-ctx.Done():
			l.remember(context.WithoutCancel(ctx), f)
			return
		case <-poll:
		case <-again:
			l.remember(ctx, f)
			again = s.Times.After(s.Config.ListenMemory / 2)
		}
	}
}

// reportTasks stores the states that are new, and forgets the tasks that are over.
func (l *listener) reportTasks(ctx context.Context) {
	left := l.tasks[:0]
	for _, w := range l.tasks {
		if !l.reportTask(ctx, &w) {
			left = append(left, w)
		}
	}
	l.tasks = left
}

// reportTask reports whether the client needs no other state of a task.
func (l *listener) reportTask(ctx context.Context, w *watched) (over bool) {
	s := l.host
	// Before the log is read: a task's last state is stored before its session ends.
	rec, known := s.Backend.Sessions.Session(w.at.Session)
	ended := known && (rec.Life != w.at.Life || rec.State != session.Open)
	is, sequence, err := l.taskState(ctx, w.at)
	switch {
	case errors.Is(err, eventlog.ErrNotFound), errors.Is(err, mcp.ErrNoTask):
		return true
	case err != nil:
		return false
	case sequence == w.sequence && !ended:
		if l.hasLost(ctx, w) {
			return l.Put(call.Item{Data: is.Failed(mcp.TaskLost).Notification(l.id)}) != nil
		}
		return false
	}
	w.sequence, w.absent = sequence, 0
	if ended && !is.Status.IsTerminal() {
		is.Task = is.Failed(mcp.TaskEnded)
	}
	return l.Put(call.Item{Data: is.Notification(l.id)}) != nil || is.Status.IsTerminal()
}

// goneAfter is how many questions after the first one must find no bridge before the listeners of its tasks receive
// [mcp.TaskLost]: one each third of [host.Times.Gone].
const goneAfter = 3

// hasLost reports, once, that the bridge of a task has been down for long. A question without an
// answer in time changes nothing: NATS ends the connection of a bridge that stays silent, and then
// reports that none responds. It counts questions and not time, since this bridge may have been paused.
func (s *env) hasLost(ctx context.Context, w *watched) bool {
	now := time.Now()
	if w.bridge == "" || w.bridge == s.host.Name || now.Sub(w.asked) < s.host.Times.Gone/goneAfter {
		return false
	}
	w.asked = now
	switch err := standby.IsAlive(ctx, s.host, w.bridge); {
	case err == nil:
		w.absent = 0
	case errors.Is(err, nats.ErrNoResponders):
		w.absent++
		return w.absent == 1+goneAfter
	}
	return false
}

// remember notes that a client listens, for --listen-memory, and reports whether it may have missed
// changes: a client of the same principal has listened to the same within that time, at any bridge.
// Without access control all clients are one principal. To report a change twice is better than not
// to report it, so a failed look-up counts as missed.
func (l *listener) remember(ctx context.Context, f translate.Filter) (missed bool) {
	s := l.host
	if s.Config.ListenMemory <= 0 || f.Empty() {
		return false
	}
	of := sha256.Sum256(event.MustJSON([]any{l.owner, f}))
	missed, err := l.Records.Remember(ctx, of, s.Config.ListenMemory)
	if err != nil {
		s.Logger.Info("a listener is not remembered", "error", err)
	}
	return missed
}
