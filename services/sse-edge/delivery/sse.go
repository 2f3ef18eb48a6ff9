package delivery

import (
	"context"
	"math/rand/v2"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/inspect"
	"rejoin/shared/sse"
)

// v1Format is the common part of the formats of /v1.
type v1Format struct{ *Connection }

func (v1Format) Protocol() inspect.Protocol { return inspect.SSE }

// Heartbeat moves the client's cursor, but never over a gap that was not reported
// to it yet.
func (f v1Format) Heartbeat() []byte {
	if id := f.source.CursorID(); id != "" {
		return sse.AppendEvent(nil, id, "cursor", []byte("{}"))
	}
	return comment
}

func (f v1Format) Farewell() []byte { return Farewell(f.Retry()) }

// expiring asks a client to renew its token. Its ID is the cursor to continue from, unless
// a gap is still to be reported.
func (f v1Format) expiring() []byte {
	return appendJSON(nil, f.source.CursorID(), "expiring", ExpiringData{f.Expires.UTC()})
}

// sseFormat is the format of one session, or one stream of it.
type sseFormat struct {
	v1Format
	envelope bool
}

// NewSSE returns a stream of /v1; an envelope names the stream of each message.
func NewSSE(s *Connections, r *cursor.Reader, by Request, envelope bool) *Connection {
	c := NewConnection(s, r, by)
	f := sseFormat{v1Format{c}, envelope}
	c.Format, c.expiring, c.Continues = f, f.expiring, true
	return c
}

func (f sseFormat) Kind() string {
	if f.envelope {
		return "envelope"
	}
	return "sse"
}

// Opening returns the connect event. A client that receives a gap next keeps its own
// cursor until then: else a connection that ends before would swallow the gap.
func (f sseFormat) Opening(ctx context.Context, from Beginning) []byte {
	cfg, r := f.of.cfg, f.Reader
	exists, oldest := r.About(ctx)
	gap := len(r.Pending)+len(f.Step.Gaps) > 0
	id := ""
	if !gap {
		id = r.ID(from.Position)
	}
	return appendJSON(sse.AppendRetry(nil, cfg.Retry), id, "connect", ConnectData{
		Session: r.Place.Session, Stream: OrNull(r.Place.Stream), Exists: exists,
		Resumed: from.Resumes && !gap, Oldest: oldest, RetainedFor: f.of.retainedFor(),
	})
}

// retainedFor is how long events are retained, in seconds; -1 for as long as there is room.
func (s *Connections) retainedFor() float64 {
	if age := s.cfg.Retention(); age > 0 {
		return age.Seconds()
	}
	return -1
}

func (f sseFormat) Rewrites() bool { return f.envelope || f.Reader.Place.Stream == "" }

func (f sseFormat) Event(b, room []byte, it *window.Item) (_, _ []byte) {
	id := f.Reader.ID(it.Sequence)
	if f.envelope {
		room = AppendObject(room[:0], it, f.Reader.Tags)
		return sse.AppendEvent(b, id, "", room), room
	}
	typ, data := window.FrameParts(it.Frame)
	if typ == event.DefaultType {
		typ = ""
	}
	return sse.AppendEvent(b, id, typ, data), room
}

// Closing is the last block of a stream or session that has ended with a step.
func (f sseFormat) Closing(cursor.Step) []byte {
	r := f.Reader
	return appendJSON(nil, r.ID(r.Cursor), "close", closeData{Status: "closed", Session: r.Place.Session, Stream: OrNull(r.Place.Stream)})
}

// Gaps returns the blocks of a step's gaps. All but the last leave the client its own
// cursor, so that none is lost if the connection ends between them.
func (f sseFormat) Gaps(s cursor.Step) []byte {
	var b []byte
	for i, g := range GapsOf(f.Reader, s) {
		id := g.ResumesAt
		if i < len(s.Gaps)-1 {
			id = ""
		}
		b = appendJSON(b, id, "gap", g)
	}
	return b
}

// GapsOf returns the gaps of a step of a session, or of one stream of it; never nil.
func GapsOf(r *cursor.Reader, s cursor.Step) []GapData {
	gaps := make([]GapData, len(s.Gaps))
	for i, g := range s.Gaps {
		gaps[i] = GapData{Reason: g.Reason, Certain: g.Certain, Stream: OrNull(g.Stream), Requested: g.Requested, ResumesAt: r.ID(r.ResumesAt(s))}
	}
	return gaps
}

// limitRetry is the reconnection time at the end of a response that a proxy would have cut.
const limitRetry = 100 * time.Millisecond

// Retry returns the reconnection time of the stream's last block: a short one, unless all
// clients reconnect at once.
func (c *Connection) Retry() time.Duration {
	if c.endAtReason == reasonLimit {
		return min(limitRetry, c.of.cfg.Retry)
	}
	return c.of.cfg.Retry
}

// CutAt returns when the response to a request ends because a proxy would cut it soon; zero for
// never.
func (s *Connections) CutAt(by Request) time.Time {
	limit := s.cfg.RequestLimit
	if limit <= 0 {
		return time.Time{}
	}
	return by.Begun.Add(limit - min(limit/4, 5*time.Second))
}

// ExpiringData is the data of the event that warns that a token is about to expire.
type ExpiringData struct {
	// ExpiresAt is when the stream ends, RFC 3339 in UTC.
	ExpiresAt time.Time `json:"expiresAt"`
}

// comment keeps a connection alive.
var comment = []byte(":\n\n")

// Farewell returns the last block of a connection: the reconnection time.
func Farewell(retry time.Duration) []byte {
	return append(sse.AppendRetry(nil, Jitter(retry)), '\n')
}

// Jitter returns d give or take a third, so that clients do not reconnect together.
func Jitter(d time.Duration) time.Duration {
	return d*2/3 + time.Duration(rand.Int64N(int64(d)*2/3+1)) //nolint:gosec // no secret
}
