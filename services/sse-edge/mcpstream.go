package edge

import (
	"encoding/json"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"rejoin/services/sse-edge/cursor"

	"rejoin/services/sse-edge/window"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/event"
	"rejoin/shared/rpc"
	"rejoin/shared/sse"
)

// mcpForm is what makes an event stream one of MCP: other blocks than those of /v1 stand
// around the same frames.
type mcpForm struct {
	// primed says that the client understands events without data, and comes back: it
	// gets one first, and may be sent away.
	primed bool
	// call are the IDs of the requests that the stream answers; on others there are none.
	call []json.RawMessage
	// legacy says that the stream is of the transport of 2024-11-05: all streams of a
	// session in one.
	legacy bool
	// behind says that the client came without a place: it goes on where the connection
	// before it stands.
	behind bool
	// served says that it was its turn once.
	served bool
	// answered says that the last message that the client got is a response, or that
	// another connection has gone on from here.
	answered bool
	// claim is that of a GET.
	claim claim
	// turn is where to go on when it is the stream's turn again, once it has been quiet.
	turn *string
	// checkAt is when the bridge is asked about the call next; zero for what is no call.
	// unheard is since when none has listened.
	checkAt, unheard time.Time
	lost             bool // it was given up
}

// newForm returns the form of a stream.
func newForm(who mcpClient, stream string) *mcpForm {
	ids, _ := rpc.RequestIDs(stream)
	return &mcpForm{primed: who.primed(), call: ids, served: true}
}

// mcpBegin lets a client in and opens the stream that it asks for, which has to be handed
// over or dropped.
func (s *Service) mcpBegin(c *fiber.Ctx, who mcpClient, req request, form *mcpForm) (*stream, error) {
	by, err := s.letIn(c, req.at.Session)
	if err != nil {
		return nil, err
	}
	st := &stream{service: s, asked: by, expires: who.grants.Expires, guest: s.guestOf(who.grants, req.at), mcp: form}
	st.quiet.Store(!form.served)
	if st.reader, err = s.open(req, window.Limits{Events: stepEvents, Bytes: stepBytes}); err != nil {
		s.admitted.Leave(by.Visit)
		return nil, err
	}
	return st, nil
}

// handOver hands a stream over to a worker, behind the request.
func (s *Service) handOver(c *fiber.Ctx, st *stream) error {
	st.chunked = c.Request().Header.IsHTTP11()
	st.head = responseHead(c, st.chunked)
	from := beginning{position: st.reader.ResumesAt(st.step), read: true}
	c.Context().HijackSetNoResponse(true)
	c.Context().Hijack(func(conn net.Conn) { st.hand(conn, from) })
	return nil
}

// drop lets go of what a stream holds that is not handed over.
func (st *stream) drop() {
	st.reader.Close()
	st.service.admitted.Leave(st.asked.Visit)
}

// opening is the first block: a place to come back to, before there is any event.
func (st *stream) opening(position uint64) []byte {
	switch {
	case st.mcp.legacy:
		return st.endpoint(position)
	case !st.mcp.primed:
		return nil
	}
	return st.prime(sse.AppendRetry(nil, st.service.cfg.Retry), position)
}

// prime appends a place and an empty event. The ID is another one each time: a client
// that comes back with the one that it came with before takes that for no progress.
func (st *stream) prime(b []byte, position uint64) []byte {
	return appendPrime(b, st.reader.ID(position))
}

func appendPrime(b []byte, id string) []byte {
	b = sse.AppendField(b, "id", id+"."+strconv.FormatUint(uint64(rand.Uint32()), 10)) //nolint:gosec // no secret
	return append(b, "data:\n\n"...)
}

// farewell is the last block of a stream that goes on elsewhere.
func (st *stream) farewell() []byte {
	s := st.service
	if st.mcp == nil || !st.mcp.primed || st.away || st.quiet.Load() || len(st.reader.Pending) > 0 {
		return s.farewell()
	}
	return st.prime(sse.AppendRetry(nil, jitter(s.cfg.Retry)), st.reader.Cursor)
}

// settle makes a gap in the stream of a call its end: what belongs to the call was lost,
// perhaps its response. Of other streams' gaps a client of MCP cannot be told.
func (st *stream) settle(s cursor.Step) cursor.Step {
	if st.mcp != nil && len(st.mcp.call) > 0 && len(s.Gaps) > 0 {
		s.Items, s.More, s.Ended = nil, false, true
	}
	return s
}

// unanswered returns an error for each request of a call that ends without a response. A
// gap that is not certain is none: the log may say more to a client that comes again.
func (st *stream) unanswered(s cursor.Step) []byte {
	last := len(s.Items) - 1
	if last >= 0 && isResponse(messageOf(s.Items[last])) || last < 0 && st.mcp.answered && len(s.Gaps) == 0 && !st.mcp.lost {
		return nil
	}
	why := "The request has ended without a response."
	switch {
	case st.mcp.lost:
		why = "The MCP server cannot be reached."
	case len(s.Gaps) > 0 && st.mcp.primed && !s.Gaps[0].Certain:
		if id, err := event.ParseID(s.Gaps[0].Requested); err == nil {
			return appendPrime(sse.AppendRetry(nil, jitter(st.service.cfg.Retry)), id.String())
		}
		why = whyGap(s.Gaps[0])
	case len(s.Gaps) > 0:
		why = whyGap(s.Gaps[0])
	}
	return appendErrors(nil, st.mcp.call, why)
}

// told notes how much of a step the client of a call has got; see [outbox.cut].
func (m *mcpForm) told(s cursor.Step, told int) {
	if last := min(told, len(s.Items)) - 1; m != nil && len(m.call) > 0 && last >= 0 {
		m.answered = isResponse(messageOf(s.Items[last]))
	}
}

// lost returns what is told of gaps in the flow of a session: an error for each request
// whose response may be missing.
func (st *stream) lost(s cursor.Step) (b []byte) {
	if !st.mcp.legacy {
		return nil
	}
	for _, g := range s.Gaps {
		ids, _ := rpc.RequestIDs(g.Stream)
		b = appendErrors(b, ids, whyGap(g))
	}
	return b
}

func whyGap(g cursor.Gap) string { return "The answer cannot be continued: " + string(g.Reason) + "." }

func appendErrors(b []byte, ids []json.RawMessage, why string) []byte {
	for _, id := range ids {
		b = append(sse.AppendData(b, rpc.ErrorMessage(id, rpc.CodeInternal, why, nil)), '\n')
	}
	return b
}

// where is the event ID of where a stream stands, for another connection to go on.
func (st *stream) where() string {
	if st.quiet.Load() || st.reader.Fresh {
		return ""
	}
	return st.reader.ID(st.reader.Cursor)
}

// tellRested tells who waits for it where the stream stands.
func (st *stream) tellRested() {
	if st.rested == nil {
		return
	}
	st.rested <- st.where() // there is room
	st.rested = nil
	st.quiet.Store(true)
	if where := st.mcp.turn; where != nil && !st.over {
		st.mcp.turn = nil
		st.worker.send(post{stream: st, what: newsTurn, where: *where})
	}
}

// rest has a stream be quiet. One that is being read for sends what is found first.
func (w *worker) rest(st *stream, rested chan<- string) {
	st.rested = rested
	if !st.away || st.flushing {
		st.tellRested()
	}
}

// takeTurn has a stream get the messages. A client that came with a place of its own goes
// on there, one without where the connection before it stood, and one that had its turn
// before there too, but never goes back.
func (w *worker) takeTurn(st *stream, where string) {
	switch {
	case st.over:
		return
	case !st.quiet.Load() && st.rested != nil: // it is being read for, and is to be quiet first
		st.mcp.turn = &where
		return
	case !st.quiet.Load():
		return
	}
	r := st.reader
	id, err := event.ParseID(where)
	if err == nil && r.ID(id.Sequence) == where && (st.mcp.behind || st.mcp.served && id.Sequence > r.Cursor) {
		r.MoveTo(id.Sequence)
		st.mcp.answered = true
	}
	st.mcp.behind, st.mcp.served = false, true
	st.quiet.Store(false)
	w.advance(st)
}

// endQuiet ends a quiet stream that has nothing to wait for but its turn.
func (w *worker) endQuiet(st *stream) {
	r := st.reader
	if st.mcp.served && r.HasEnd() {
		w.last(st, nil)
		w.end(st, "ended")
	}
}

// forever is longer than any connection lives.
const forever = 100 * 365 * 24 * time.Hour
