package edge

import (
	"cmp"
	"context"
	"crypto/rand"
	"os"
	"slices"
	"time"

	"rejoin/services/sse-edge/cursor"

	"rejoin/shared/inspect"
)

// traffic is what a worker notes of a stream for those who watch: 40 B with its number.
type traffic struct {
	opened int64 // Unix time in milliseconds
	events uint64
	sentAt int64  // when the last event was written, as opened; 0 for never
	stood  uint64 // where the cursor stood when the client came, or when a read of the log began
}

// wrote notes that events were written.
func (t *traffic) wrote(events int, now int64) {
	if events > 0 {
		t.events += uint64(events)
		t.sentAt = now
	}
}

// inquiry is a question to a worker about the streams of a session.
type inquiry struct {
	session string
	limit   int
	found   chan<- found // has room
}

// found is a worker's answer.
type found struct {
	newest []inspect.Connection
	total  int
}

// find answers a question.
func (w *worker) find(q inquiry) {
	var streams []*stream
	for c, sub := range w.subs {
		if c.Place.Session == q.session {
			streams = append(streams, sub.streams...)
		}
	}
	slices.SortFunc(streams, func(a, b *stream) int { return cmp.Compare(b.asked.number, a.asked.number) })
	f := found{total: len(streams)}
	for _, st := range streams[:min(q.limit, len(streams))] {
		f.newest = append(f.newest, st.shown())
	}
	q.found <- f
}

// shown is called by the stream's worker. The reader of one that is away in a read is not
// the worker's.
func (st *stream) shown() inspect.Connection {
	t := &st.traffic
	c := inspect.Connection{
		Number: st.asked.number, Stream: st.reader.Place.Stream, Protocol: st.protocol(), Since: time.UnixMilli(t.opened).UTC(),
		Came: arrivals[st.reader.Came], State: inspect.Live, Events: t.events,
	}
	if st.asked.Address.IsValid() {
		c.Address = st.asked.Address.String()
	}
	if t.sentAt > 0 {
		c.Sent = time.UnixMilli(t.sentAt).UTC()
	}
	reading := st.away && !st.flushing
	if c.Cursor = t.stood; !reading {
		c.Cursor = st.reader.Cursor
	}
	switch {
	case st.flushing:
		c.State = inspect.Slow
	case reading || !st.retryAt.IsZero():
		c.State = inspect.Reading
	case st.quiet.Load():
		c.State = inspect.Quiet
	}
	return c
}

func (st *stream) protocol() inspect.Protocol {
	switch {
	case st.mcp == nil:
		return inspect.SSE
	case st.mcp.legacy:
		return inspect.MCPLegacy
	case len(st.mcp.call) > 0:
		return inspect.MCPCall
	default:
		return inspect.MCP
	}
}

// usual reports whether a stream answers the POST that made it: its coming is no news,
// and neither is its end in order.
func (st *stream) usual() bool {
	return st.mcp != nil && len(st.mcp.call) > 0 && st.reader.Came == cursor.FromNow
}

// noteComing writes down that a stream begins.
func (st *stream) noteComing() {
	if st.usual() {
		return
	}
	h := st.happening(inspect.Connected)
	if h.cursor = st.traffic.stood; h.came == cursor.FromWindow || h.came == cursor.FromLog {
		h.what = inspect.Resumed
	}
	st.service.diary.note(h)
}

// noteEnd writes down that it has ended. Nobody uses it any more.
func (st *stream) noteEnd() {
	if st.usual() && st.reason == "ended" {
		return
	}
	h := st.happening(inspect.Ended)
	h.reason, h.cursor, h.count = st.reason, st.reader.Cursor, st.traffic.events
	st.service.diary.note(h)
}

func (st *stream) happening(what inspect.What) happening {
	return happening{what: what, where: st.reader.Place, address: st.asked.Address, number: st.asked.number, came: st.reader.Came}
}

// audience returns how the edge answers the janitor until ctx ends.
func (s *Service) audience(ctx context.Context) func(inspect.Question) inspect.Answer {
	id := rand.Text()
	host, _ := os.Hostname() // or none is told
	return func(q inspect.Question) inspect.Answer {
		a := inspect.Answer{Edge: id, Host: host}
		a.Clients, a.Of = s.admitted.Clients(q)
		limit := cmp.Or(q.Limit, inspect.MaxItems)
		switch q.About {
		case inspect.Clients:
		case inspect.Connections:
			a.Connections, a.Total = s.connections(ctx, q.Session, limit)
		case inspect.Happenings:
			a.Happenings, a.Total, a.Since = s.diary.of(q.Session, limit)
		case inspect.Gaps:
			a.Happenings, a.Reasons, a.Total, a.Since = s.diary.lately(limit)
		}
		return a
	}
}

// connections asks all workers for the newest streams of a session. Workers that have
// ended do not answer; then ctx ends.
func (s *Service) connections(ctx context.Context, session string, limit int) (newest []inspect.Connection, total int) {
	answers := make(chan found, len(s.workers))
	for _, w := range s.workers {
		w.send(post{what: newsAsked, asked: &inquiry{session, limit, answers}})
	}
	for range s.workers {
		select {
		case f := <-answers:
			newest, total = append(newest, f.newest...), total+f.total
		case <-ctx.Done():
			return nil, 0
		}
	}
	slices.SortFunc(newest, func(a, b inspect.Connection) int { return cmp.Compare(b.Number, a.Number) })
	return newest[:min(limit, len(newest))], total
}
