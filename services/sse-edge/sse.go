package edge

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

// sseFormat is the format of /v1.
type sseFormat struct {
	*stream
	envelope bool
}

// newSSE returns a stream of /v1; an envelope names the stream of each message.
func newSSE(s *streams, r *cursor.Reader, by asked, envelope bool) *stream {
	st := newStream(s, r, by)
	f := sseFormat{st, envelope}
	st.format, st.expiring = f, f.expiring
	return st
}

func (f sseFormat) kind() string {
	if f.envelope {
		return "envelope"
	}
	return "sse"
}

func (sseFormat) protocol() inspect.Protocol { return inspect.SSE }

// opening returns the connect event. A client that is told of a gap next keeps the cursor
// that it came with until then: else a connection that ends before would swallow the gap.
func (f sseFormat) opening(ctx context.Context, from beginning) []byte {
	cfg, r := f.streams.cfg, f.reader
	exists, oldest := r.About(ctx)
	retained := -1.0
	if cfg.Retention > 0 {
		retained = cfg.Retention.Seconds()
	}
	gap := len(r.Pending)+len(f.step.Gaps) > 0
	id := ""
	if !gap {
		id = r.ID(from.position)
	}
	return appendJSON(sse.AppendRetry(nil, cfg.Retry), id, "connect", connectData{
		Session: r.Place.Session, Stream: orNull(r.Place.Stream), Exists: exists,
		Resumed: from.resumes && !gap, Oldest: oldest, RetainedFor: retained,
	})
}

func (f sseFormat) rewrites() bool { return f.envelope || f.reader.Place.Stream == "" }

func (f sseFormat) event(b, room []byte, it *window.Item) (_, _ []byte) {
	id := f.reader.ID(it.Sequence)
	if f.envelope {
		room = appendObject(room[:0], it, f.reader.Tags)
		return sse.AppendEvent(b, id, "", room), room
	}
	typ, data := window.FrameParts(it.Frame)
	if typ == event.DefaultType {
		typ = ""
	}
	return sse.AppendEvent(b, id, typ, data), room
}

// heartbeat moves the client's cursor, but never over a gap that it has not been
// told of yet.
func (f sseFormat) heartbeat() []byte {
	if len(f.reader.Pending) > 0 {
		return comment
	}
	return sse.AppendEvent(nil, f.reader.ID(f.reader.Cursor), "cursor", []byte("{}"))
}

// closing is the last block of a stream or session that has ended with a step.
func (f sseFormat) closing(cursor.Step) []byte {
	r := f.reader
	return appendJSON(nil, r.ID(r.Cursor), "close", closeData{Status: "closed", Session: r.Place.Session, Stream: orNull(r.Place.Stream)})
}

// gaps returns the blocks of a step's gaps. All but the last carry the cursor that
// the client came with, so that none is lost if the connection ends between them.
func (f sseFormat) gaps(s cursor.Step) []byte {
	var b []byte
	resumesAt := f.reader.ID(f.reader.ResumesAt(s))
	for i, g := range s.Gaps {
		id := resumesAt
		if i < len(s.Gaps)-1 {
			id = ""
		}
		b = appendJSON(b, id, "gap", gapData{Reason: g.Reason, Certain: g.Certain, Stream: orNull(g.Stream), Requested: g.Requested, ResumesAt: resumesAt})
	}
	return b
}

func (f sseFormat) farewell() []byte { return Farewell(f.streams.cfg.Retry) }

// expiringData is the data of the event that tells that a token is about to expire.
type expiringData struct {
	// ExpiresAt is when the stream ends, RFC 3339 in UTC.
	ExpiresAt time.Time `json:"expiresAt"`
}

// expiring tells a client to renew its token, and, unless a gap is still to be told, the
// place to go on from.
func (f sseFormat) expiring() []byte {
	id := ""
	if len(f.reader.Pending) == 0 {
		id = f.reader.ID(f.reader.Cursor)
	}
	return appendJSON(nil, id, "expiring", expiringData{f.expires.UTC()})
}

// comment keeps a connection alive.
var comment = []byte(":\n\n")

// Farewell returns what sends a client away: when to come back.
func Farewell(retry time.Duration) []byte {
	return append(sse.AppendRetry(nil, Jitter(retry)), '\n')
}

// Jitter returns d give or take a third, so that clients do not come back together.
func Jitter(d time.Duration) time.Duration {
	return d*2/3 + time.Duration(rand.Int64N(int64(d)*2/3+1)) //nolint:gosec // no secret
}
