package stateless

import (
	"crypto/rand"
	"encoding/json"
	"slices"
	"time"

	"rejoin/services/bridge/translate"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// The task that a translated call may become.

// taskSoon makes the call a task after [env.taskAfter], unless its client has another answer by then. The caller
// holds the lock.
func (t *translated) taskSoon() {
	if !t.rule.may || t.made != nil || t.target == nil {
		return
	}
	if t.due != nil {
		t.due.Stop()
	}
	t.due = time.AfterFunc(t.env.taskAfter(), func() { t.session.Go(t.makeTask) })
}

func (t *translated) makeTask() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.make()
}

// make makes the call a task, unless it is over or its client is about to be asked. The caller
// holds the lock.
func (t *translated) make() {
	if t.target == nil || t.made != nil || len(t.open) > 0 {
		return
	}
	if t.made = beginTask(t.session); t.made != nil {
		t.final(t.target, t.made.created())
		t.turn(nil)
	}
}

// askTask asks the client of a task, but not while its answers are sent: updateTask asks it then. The caller
// holds the lock.
func (t *translated) askTask() {
	if t.over || t.sending || len(t.open) == 0 {
		return
	}
	requests, ids := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for _, q := range t.open {
		requests[q.key], ids[q.key] = event.MustJSON(q.Whole()), q.id
	}
	if t.first != nil { // else the call is about to be continued
		t.first.PauseIdleTimer()
	}
	if !t.made.storeQuestions(requests, ids) {
		t.giveUp()
		return
	}
	t.questionsLogged()
	t.awaitInput(t.cancelTask)
}

// continueTask continues the task that the call has become at another bridge.
func (t *translated) continueTask(k *task) {
	t.made, t.over = k, k.is.Status.IsTerminal()
	if k.is.Status == mcp.TaskInputRequired {
		t.awaitInput(t.cancelTask)
	}
	for key, id := range k.is.Asked {
		var q translate.Question
		_ = rpc.Unmarshal(k.is.Requests[key], &q) // a bridge has written it
		t.open = append(t.open, question{q, id, key})
	}
	t.keys = rand.Text() // the keys of answered questions are unknown, and a task has each key once
}

// updateTask also sends the answers before it returns: until the server has them, the task's state has the questions,
// and the next bridge takes the answers again.
func (t *translated) updateTask(answers translate.Object) (err error) {
	t.answering.Lock() // a repeated request does not send an answer again
	defer t.answering.Unlock()
	t.mu.Lock()
	requests := t.made.is.Requests
	answered := slices.DeleteFunc(slices.Clone(t.open), func(q question) bool {
		_, ok := answers[q.key]
		return !ok || requests[q.key] == nil // the client has not been asked
	})
	if t.sending = len(answered) > 0; t.sending && t.expiry != nil {
		t.expiry.Stop() // the client is in time, however long the server takes
	}
	t.mu.Unlock()
	taken := map[string]bool{}
	for _, q := range answered {
		if err = t.send(q.answer(answers[q.key])); err != nil {
			break
		}
		taken[q.key] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sending = false
	t.open = slices.DeleteFunc(t.open, func(q question) bool { return taken[q.key] })
	switch {
	case t.over:
		return nil
	case len(answered) == 0:
	case len(t.open) > 0:
		t.askTask()
	default:
		t.expiry.Stop()
		t.made.working()
		if t.first != nil {
			t.first.ResumeIdleTimer()
		}
	}
	return err
}

func (t *translated) cancelTask(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.made.cancel(why)
		t.giveUp()
	}
}
