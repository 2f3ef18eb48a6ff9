package delivery

import (
	"context"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/sse"
)

// groupFormat is the format of a connection that follows several sessions.
type groupFormat struct {
	v1Format
	group *cursor.Group
}

// NewGroup returns a stream of several sessions, each of whose messages is in an envelope. came
// is where the client began.
func NewGroup(s *Connections, g *cursor.Group, by Request, came cursor.Arrival) *Connection {
	c := NewConnection(s, &cursor.Reader{Came: came}, by)
	c.source, g.Hold, g.Await = g, c.hold, c.await
	if most := int64(g.MaxHold()); most > 0 {
		c.most = most
	}
	f := groupFormat{v1Format{c}, g}
	c.Format, c.expiring, c.Continues = f, f.expiring, true
	return c
}

// GroupFrame returns the block of an event for several sessions: its ID is id.
func GroupFrame(id string, of *cursor.Member, it *window.Item) []byte {
	data := AppendString([]byte(`{"session":`), of.Place.Session)
	data = appendObject(append(data, ','), it, of.Tags())
	return sse.AppendEvent(nil, id, "", data)
}

func (f groupFormat) Kind() string { return "group" }

// groupConnect is the data of the first event on a connection of several sessions.
type groupConnect struct {
	Sessions    []groupState `json:"sessions"`
	Resumed     bool         `json:"resumed"`
	RetainedFor float64      `json:"retainedFor"`
}

// groupState says whether a client receives a session, or one of its streams.
type groupState struct {
	Session string             `json:"session"`
	Stream  *string            `json:"stream"`
	State   cursor.MemberState `json:"state"`
}

func stateOf(at window.Place, state cursor.MemberState) groupState {
	return groupState{at.Session, OrNull(at.Stream), state}
}

// Opening returns the connect event. It has no cursor when a gap follows, as that of one session.
func (f groupFormat) Opening(_ context.Context, from Beginning) []byte {
	id := f.group.Began()
	if len(f.Step.Gaps) > 0 {
		id = ""
	}
	data := groupConnect{Sessions: []groupState{}, Resumed: from.Resumes && id != "", RetainedFor: f.of.retainedFor()}
	for _, m := range f.group.Members() {
		data.Sessions = append(data.Sessions, stateOf(m.Place, m.State))
	}
	return appendJSON(sse.AppendRetry(nil, f.of.cfg.Retry), id, "connect", data)
}

func (groupFormat) Rewrites() bool { return false } // the group makes the blocks

func (groupFormat) Event(b, room []byte, _ *window.Item) (_, _ []byte) { return b, room }

// Gaps returns blocks without a cursor: the next event has it, or the next heartbeat.
func (f groupFormat) Gaps(s cursor.Step) []byte {
	var b []byte
	for _, g := range s.Gaps {
		b = appendJSON(b, "", "gap", GapData{Session: g.Session, Reason: g.Reason, Certain: g.Certain, Stream: OrNull(g.Stream), Requested: g.Requested, ResumesAt: g.ResumesAt})
	}
	for _, change := range s.Changes {
		b = appendJSON(b, "", "state", stateOf(change.Place, change.State))
	}
	return b
}

func (groupFormat) Closing(cursor.Step) []byte { return nil }
