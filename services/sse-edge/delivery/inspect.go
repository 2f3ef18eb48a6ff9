package delivery

import (
	"cmp"
	"slices"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/shared/inspect"
)

// found is a worker's answer to a question about the streams of a session.
type found struct {
	newest []inspect.Connection
	total  int
}

// find answers a question.
//
// The worker answers about its own streams, so that nothing is locked where events are written.
// A stream that is away shows its cursor from before.
func (w *worker) find(session string, limit int) found {
	var streams []*Stream
	for _, listener := range w.listeners {
		if len(listener.streams) > 0 && listener.streams[0].source.Follows(session) {
			streams = append(streams, listener.streams...)
		}
	}
	slices.SortFunc(streams, func(a, b *Stream) int { return cmp.Compare(b.Request.number, a.Request.number) })
	f := found{total: len(streams)}
	for _, st := range streams[:min(limit, len(streams))] {
		f.newest = append(f.newest, st.shown(session))
	}
	return f
}

// shown is called by the stream's worker. The reader of one that is away in a read is not
// the worker's.
func (st *Stream) shown(session string) inspect.Connection {
	t := &st.traffic
	c := inspect.Connection{
		Number: st.Request.number, Stream: st.Reader.Place.Stream, Protocol: st.Format.Protocol(), Since: time.UnixMilli(t.opened).UTC(),
		Came: arrivals[st.Reader.Came], State: inspect.Live, Events: t.events,
	}
	if st.Request.Address.IsValid() {
		c.Address = st.Request.Address.String()
	}
	if t.sentAt > 0 {
		c.Sent = time.UnixMilli(t.sentAt).UTC()
	}
	if c.Cursor = t.stood; st.phase != reading {
		c.Cursor = st.source.At(session)
	}
	switch {
	case st.phase >= flushing:
		c.State = inspect.Slow
	case st.phase == reading || !st.retryAt.IsZero():
		c.State = inspect.Reading
	case st.IsQuiet():
		c.State = inspect.Quiet
	}
	return c
}

// noteComing writes down that a stream begins.
func (st *Stream) noteComing() {
	if st.Routine {
		return
	}
	h := st.happening(inspect.Connected)
	if h.cursor = st.traffic.stood; h.came == cursor.FromWindow || h.came == cursor.FromLog {
		h.what = inspect.Resumed
	}
	st.streams.History.note(h)
}

// noteEnd notes that the stream has ended. It is not used after that.
func (st *Stream) noteEnd() {
	if st.Routine && st.reason == "ended" {
		return
	}
	h := st.happening(inspect.Ended)
	h.reason, h.cursor, h.events = st.reason, st.Reader.Cursor, st.traffic.events
	st.streams.History.note(h)
}

func (st *Stream) happening(what inspect.What) happening {
	return happening{what: what, where: st.Reader.Place, address: st.Request.Address, number: st.Request.number, came: st.Reader.Came}
}
