package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"rejoin/shared/event"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// retained asks the janitor how many events of a stream the log holds.
func (p *proc) retained(session, stream string) int {
	a := do(p.t, http.MethodGet, p.api()+"/v1/sessions/"+session, "")
	if a.status == http.StatusNotFound {
		return 0
	}
	var detail struct {
		Streams []struct {
			Stream string `json:"stream"`
			Events int    `json:"events"`
		} `json:"streams"`
	}
	if err := json.Unmarshal([]byte(a.body), &detail); err != nil || a.status != http.StatusOK {
		p.t.Fatalf("%d %s", a.status, a.body)
	}
	for _, s := range detail.Streams {
		if s.Stream == stream {
			return s.Events
		}
	}
	return 0
}

// sequenceOf returns an id's sequence, 0 for no id.
func sequenceOf(t testing.TB, id string) uint64 {
	t.Helper()
	if id == "" {
		return 0
	}
	parsed := must.Value(event.ParseID(id))(t)
	return parsed.Sequence
}

// begun waits until the janitor has begun the generation of another life of the log, for which others
// wait for 3 s only. earlier is an event ID of the stream, of the generation that the log had before.
func (p *proc) begun(path, earlier string) {
	p.t.Helper()
	before := must.Value(event.ParseID(earlier))(p.t)
	waittest.Until(p.t, "the generation is begun", func() bool {
		var page struct{ Cursor string }
		a, err := try(http.MethodGet, p.api()+path+"?from=now", "", "Accept", "application/json")
		if err != nil || json.Unmarshal([]byte(a.body), &page) != nil {
			return false
		}
		now, err := event.ParseID(page.Cursor)
		return err == nil && now.Tag != before.Tag
	})
}

// The publisher's id and the subscribers' are the same, from the first event of a
// session on, and can be resumed from.
func TestPublish_AnswersTheIDThatSubscribersSee(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	for i := range 200 {
		session := fmt.Sprintf("fresh-%d", i)
		id := p.publish(session, "s", 1, 1)
		s := p.subscribe(streamPath(session, "s"), "")
		s.connected()
		if got := s.next("message").ID; got != id {
			t.Errorf("%s was published, %s came out", id, got)
		}
		s.cut()
		s = p.subscribe(streamPath(session, "s"), id)
		if !s.connected() {
			t.Errorf("%s cannot be resumed from: %s", id, s.next("gap").Data)
		}
		s.cut()
	}
}
