package delivery

import (
	"cmp"
	"slices"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/shared/inspect"
)

// found is a worker's answer to a question about the connections of a session.
type found struct {
	newest []inspect.Connection
	total  int
}

// find answers a question.
//
// The worker answers about its own connections, so that nothing is locked where events are written.
// A connection that is away shows its cursor from before.
func (w *worker) find(session string, limit int) found {
	var connections []*Connection
	for _, listener := range w.listeners {
		if len(listener.connections) > 0 && listener.connections[0].source.Follows(session) {
			connections = append(connections, listener.connections...)
		}
	}
	slices.SortFunc(connections, func(a, b *Connection) int { return cmp.Compare(b.Request.number, a.Request.number) })
	f := found{total: len(connections)}
	for _, c := range connections[:min(limit, len(connections))] {
		f.newest = append(f.newest, c.shown(session))
	}
	return f
}

// shown is called by the connection's worker. The reader of a connection that is away in a read is
// not the worker's.
func (c *Connection) shown(session string) inspect.Connection {
	t := &c.traffic
	shown := inspect.Connection{
		Number: c.Request.number, Stream: c.Reader.Place.Stream, Protocol: c.Format.Protocol(), Since: time.UnixMilli(t.opened).UTC(),
		Came: arrivals[c.Reader.Came], State: inspect.Live, Events: t.events,
	}
	if c.Request.Address.IsValid() {
		shown.Address = c.Request.Address.String()
	}
	if t.sentAt > 0 {
		shown.Sent = time.UnixMilli(t.sentAt).UTC()
	}
	if shown.Cursor = t.stood; c.phase != reading {
		shown.Cursor = c.source.At(session)
	}
	switch {
	case c.phase >= flushing:
		shown.State = inspect.Slow
	case c.phase == reading || !c.retryAt.IsZero():
		shown.State = inspect.Reading
	case c.IsQuiet():
		shown.State = inspect.Quiet
	}
	return shown
}

// noteComing notes that a connection begins.
func (c *Connection) noteComing() {
	if c.Routine {
		return
	}
	h := c.happening(inspect.Connected)
	if h.cursor = c.traffic.stood; h.came == cursor.FromWindow || h.came == cursor.FromLog {
		h.what = inspect.Resumed
	}
	c.of.History.note(h)
}

// noteEnd notes that the connection has ended. It is not used after that.
func (c *Connection) noteEnd() {
	if c.Routine && c.endReason == "ended" {
		return
	}
	h := c.happening(inspect.Ended)
	h.reason, h.cursor, h.events = c.endReason, c.Reader.Cursor, c.traffic.events
	c.of.History.note(h)
}

func (c *Connection) happening(what inspect.What) happening {
	return happening{what: what, where: c.Reader.Place, address: c.Request.Address, number: c.Request.number, came: c.Reader.Came}
}
