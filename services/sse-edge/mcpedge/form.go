package mcpedge

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/inspect"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/sse"
)

// streamForm is the form of an event stream of MCP: other blocks than those of /v1 stand
// around the same frames.
type streamForm struct {
	connection
	service *Service
	since   time.Time // when the connection began
	// primed says that the client understands events without data, and reconnects: it
	// receives one first, and may be sent away.
	primed bool
	// call are the IDs of the requests that the stream answers; other streams have none.
	call []json.RawMessage
	// sse2024 says that the stream is of the transport of 2024-11-05: all streams of a
	// session in one.
	sse2024 bool
	// stateless says that it is of a revision without sessions: its events have IDs only where the
	// client may resume, and the call is cancelled when the client disconnects.
	stateless bool
	// held says that the client names the call's session, and only the bridge knows whether it may: the
	// connection does not count for the session.
	held bool
	// discovers says that the response is that to server/discover.
	discovers bool
	// open are the IDs of the requests of call to which the client has received no response, as far as this
	// connection knows. partly says that others received messages, perhaps responses; moved says that they
	// received some since this one last did.
	open          []json.RawMessage
	partly, moved bool
	// state is the state with which the call is handed over; nil for a call that is not.
	state *mcp.HandOver
	// renamed is the client's newest request, of which it has the ID and the progress token; nil for a
	// call that was not handed over. kind is unique to the stream.
	renamed *mcp.Request
	kind    string
	// handedOver says that the call was handed over: the client is to make its request again.
	handedOver bool
	// checkAt is when the bridge is asked about the call next; zero for a stream of no call.
	checkAt time.Time
	unheard absence // of the bridge
	lost    bool    // the call was given up
}

// newForm returns the form of a stream.
func newForm(who caller, stream string) *streamForm {
	ids, _ := rpc.RequestIDs(stream)
	return &streamForm{primed: who.primed(), call: ids}
}

// begin admits a client and opens its stream, which has to be started or dropped.
func (s *Service) begin(c *fiber.Ctx, who caller, req subscriber.Request, form *streamForm) error {
	sessions := []string{req.At.Session}
	if form.held {
		sessions = nil
	}
	conn, err := s.openStream(c, req, sessions...)
	if err != nil {
		return err
	}
	form.Connection, form.service, form.since, form.open = conn, s, time.Now(), form.call
	conn.Format, conn.Companion = form, form
	conn.Expires, conn.Revoked = who.grants.Expires, s.subs.Revoked(s.subs.GuestOf(who.grants, req.At))
	if s.subs.Config.Access.On() && req.At.Life == "" {
		conn.Reader.Authorize = func(ctx context.Context, life string) (bool, error) {
			_, may, err := s.subs.AuthorizeLife(ctx, req.At.Session, life, who.grants)
			return may, err
		}
	}
	// A gap in a call's stream has lost some of its messages, perhaps the response. Gaps in other
	// streams cannot be reported to a client of MCP.
	call := len(form.call) > 0
	conn.HandsOver = form.state != nil
	conn.Continues = form.primed || conn.HandsOver
	conn.EndsAtGap, conn.Ageless, conn.Stays = call, form.stateless || !form.primed, call && !conn.Continues
	form.partly = conn.Reader.Came != cursor.FromNow
	conn.Routine = call && !form.partly
	return nil
}

// openStream admits a client, as a connection of sessions, and opens a stream without a format.
func (s *Service) openStream(c *fiber.Ctx, req subscriber.Request, sessions ...string) (*delivery.Connection, error) {
	by, err := s.subs.Admit(c, sessions...)
	if err != nil {
		return nil, err
	}
	r, err := s.subs.Open(by.Client, req, window.Limits{Events: subscriber.StepEvents, Bytes: subscriber.StepBytes})
	if err != nil {
		s.subs.Admission.Leave(by.Visit)
		return nil, err
	}
	return delivery.NewConnection(s.subs.Connections, r, by), nil
}

// start hands the stream to a worker, after the request.
//
// go-sdk 1.8 delivers a partial event before a clean end of the body (docs/upstream/0027), so
// MCP's streams are chunked, one block in a chunk.
func (m *streamForm) start(c *fiber.Ctx) error {
	m.Chunked = c.Request().Header.IsHTTP11()
	m.service.metrics.connections.Inc()
	return subscriber.SendStream(c, m.Connection, delivery.Beginning{Position: m.Reader.ResumesAt(m.Step), Read: true})
}

func (m *streamForm) Kind() string {
	switch {
	case m.renamed != nil:
		return m.kind
	case m.stateless && m.primed:
		return string(inspect.MCPCall) + " " + mcp.Stateless + " with IDs"
	case m.stateless:
		return string(inspect.MCPCall) + " " + mcp.Stateless
	}
	return string(m.Protocol())
}

func (m *streamForm) Protocol() inspect.Protocol {
	switch {
	case m.sse2024:
		return inspect.MCPLegacy
	case len(m.call) > 0:
		return inspect.MCPCall
	default:
		return inspect.MCP
	}
}

// Opening returns the first block: a cursor to resume at, before there is any event.
func (m *streamForm) Opening(_ context.Context, from delivery.Beginning) []byte {
	switch {
	case m.sse2024:
		return m.endpoint(from.Position)
	case !m.primed:
		return nil
	}
	return m.prime(sse.AppendRetry(nil, m.service.subs.Config.Retry), from.Position)
}

func (m *streamForm) Rewrites() bool { return m.sse2024 || m.stateless }

func (m *streamForm) Event(b, room []byte, it *window.Item) (_, _ []byte) {
	typ, data := window.FrameParts(it.Frame)
	if m.renamed != nil {
		if data = m.renamed.Renamed(data); data == nil {
			return b, room
		}
	}
	if m.stateless && !m.primed {
		return append(sse.AppendData(b, data), '\n'), room
	}
	return sse.AppendEvent(b, m.named(m.Reader.ID(it.Sequence)), typ, data), room
}

func (m *streamForm) Heartbeat() []byte { return []byte(":\n\n") }

func (m *streamForm) Begun() {
	if len(m.call) > 0 && m.checkAt.IsZero() {
		m.checkAt = time.Now().Add(m.service.checkEvery)
	}
	switch {
	case !m.stateless:
		m.service.attached.join(&m.connection)
	case m.Reader.Came != cursor.FromNow:
		m.checkAt = time.Now() // the bridge learns that a client waits again
	}
}

func (m *streamForm) Ended(begun bool) {
	m.service.metrics.connections.Dec()
	if m.stateless {
		if len(m.open) > 0 && !m.handedOver { // a call that is handed over ends when no edge asks about it
			m.service.cancel(rpc.Ask{Session: m.Reader.Place.Session, Stream: m.Reader.Place.Stream, Since: m.since}, m.primed)
		}
		return
	}
	if !begun && m.IsQuiet() {
		m.service.attached.miss(attachKey(m.Reader.Place), m.claim)
	}
	m.service.attached.leave(&m.connection, m.At())
}

func (m *streamForm) Moved() { m.partly, m.moved = true, true }

// prime appends an event ID and an empty event. The ID is another one each time: a client
// that reconnects with the same ID as before takes that for no progress.
func (m *streamForm) prime(b []byte, position uint64) []byte {
	return appendPrime(b, m.named(m.Reader.ID(position)))
}

// named returns an event ID in the form that the client resumes with: with the session, unless a header names it.
func (m *streamForm) named(id string) string {
	if m.stateless || m.sse2024 {
		return sessionEventID(m.Reader.Place.Session, id)
	}
	return id
}

func appendPrime(b []byte, id string) []byte {
	b = sse.AppendField(b, "id", id+"."+strconv.FormatUint(uint64(rand.Uint32()), 10)) //nolint:gosec // no secret
	return append(b, "data:\n\n"...)
}

// Farewell returns the last block of a stream that continues elsewhere, if its client can reconnect.
func (m *streamForm) Farewell() []byte {
	if m.stateless && !m.primed {
		return m.handOverCall()
	}
	if !m.primed || m.IsAway() || m.IsQuiet() || len(m.Reader.Pending) > 0 {
		return delivery.Farewell(m.Retry())
	}
	return m.prime(sse.AppendRetry(nil, delivery.Jitter(m.Retry())), m.Reader.Cursor)
}

// handOverCall returns the block that hands the call over; nil for a call that ends with its
// connection.
func (m *streamForm) handOverCall() []byte {
	if m.state == nil || m.IsAway() || len(m.Reader.Pending) > 0 {
		return nil
	}
	m.handedOver = true
	return handOverBlock(m.call[0], *m.state, m.Reader.ID(m.Reader.Cursor))
}

// handOverBlock returns the result by which a client makes its request again at once, with a state
// that names the event after which the answer continues.
//
// The Go SDK takes only a result with inputRequests for one.
func handOverBlock(id json.RawMessage, state mcp.HandOver, after string) []byte {
	state.Times++
	state.After = after
	result := event.MustJSON(map[string]any{"resultType": "input_required", "inputRequests": struct{}{}, "requestState": state.String()})
	return append(sse.AppendData(nil, response(id, result)), '\n')
}

const noResponse = "The request has ended without a response."

// Closing returns an error for each request of a call that ends without a response. With an unchecked gap
// the client is asked to reconnect.
func (m *streamForm) Closing(s cursor.Step) []byte {
	open := m.openAfter(s.Items)
	// A window that is behind the client's event ID shows the end after isOver has found none.
	all := len(s.Items)+len(s.Gaps) == 0 && !m.lost && (m.moved || m.Reader.CameAtEnd())
	if len(open) == 0 || all {
		return nil
	}
	why := noResponse
	switch {
	case m.lost:
		why = "The MCP server cannot be reached."
	case len(s.Gaps) > 0:
		gap := s.Gap()
		if id, err := event.ParseID(gap.Requested); m.primed && gap.Unchecked && err == nil {
			return appendPrime(sse.AppendRetry(nil, delivery.Jitter(m.service.subs.Config.Retry)), m.named(id.String()))
		}
		why = whyGap(gap)
	}
	return appendErrors(nil, open, why)
}

// Told notes how much of a step the client of a call has received; see cut of delivery's outbox.
func (m *streamForm) Told(s cursor.Step, told int) {
	m.open = m.openAfter(s.Items[:told])
	m.moved = m.moved && told == 0
}

// openAfter returns the IDs of the requests that have no response once the client has received these
// messages. The response to one request alone is the last message, whatever its ID: a call that was
// handed over has another one. So is the last response to a batch of which other connections may have
// received responses.
func (m *streamForm) openAfter(items []window.Item) []json.RawMessage {
	switch n := len(items); {
	case n == 0 || len(m.call) == 0:
		return m.open
	case (len(m.call) == 1 || m.partly) && isResponse(messageOf(items[n-1])):
		return nil
	case len(m.call) == 1 || m.partly:
		return m.call
	}
	open := m.open
	for i := range items {
		if id := responseID(messageOf(items[i])); id != "" {
			if at := slices.IndexFunc(open, func(other json.RawMessage) bool { return rpc.IDKey(other) == id }); at >= 0 {
				open = slices.Concat(open[:at], open[at+1:])
			}
		}
	}
	return open
}

// Gaps returns the blocks of gaps in the flow of a session: an error for each request
// whose response may be missing.
func (m *streamForm) Gaps(s cursor.Step) (b []byte) {
	if !m.sse2024 {
		return nil
	}
	for i, g := range s.Gaps {
		if slices.ContainsFunc(s.Gaps[:i], func(before cursor.Gap) bool { return before.Stream == g.Stream }) {
			continue // its requests have their errors
		}
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

// sessionEventID is an event ID that names its session too: <session token>:<event ID>. It is for
// clients that send nothing else when they reconnect: of 2024-11-05, and of a revision without sessions.
func sessionEventID(name, id string) string { return event.Token(name) + ":" + id }

// parseSessionEventID splits <session token>:<event ID>; see sessionEventID. id is not parsed.
func parseSessionEventID(text string) (name, id string, ok bool) {
	token, id, ok := strings.Cut(text, ":")
	if !ok {
		return "", "", false
	}
	name, err := event.SessionName(token)
	return name, id, err == nil
}

// endpoint returns the first block: the URL to post to. Its ID lets a client resume that is
// cut off before the first message.
func (m *streamForm) endpoint(position uint64) []byte {
	name := m.Reader.Place.Session
	return sse.AppendEvent(nil, m.named(m.Reader.ID(position)), "endpoint", []byte("/messages?session="+url.QueryEscape(name)))
}

const (
	// checkEvery is how often the bridge is asked whether it still works on a call.
	checkEvery = 10 * time.Second
	// recheckEvery is how often it is asked once no bridge has listened.
	recheckEvery = 2 * time.Second
	// unheardFor is how long no bridge may listen before a call is given up. A bridge that
	// restarts takes its calls over by then. With the times above the client receives its error within
	// 30 s, before the time-outs of clients (60 s in the TypeScript SDK).
	unheardFor = 17 * time.Second
	// maxChecks bounds the checks at a time; others wait for the next turn. A paused bridge holds
	// the checks of half of its calls for takenTimeout each, and has 4,096 calls by default: there
	// must be room for the calls of other bridges, which end after 35 s without a question.
	maxChecks = 4096
)

// Due is when the bridge is asked about the call next.
func (m *streamForm) Due() time.Time { return m.checkAt }

// Tick asks the bridge about a call, unless too many checks are in progress.
func (m *streamForm) Tick(now time.Time) {
	s := m.service
	every := s.checkEvery
	if m.unheard.begun() {
		every = min(every, recheckEvery)
	}
	m.checkAt = now.Add(every)
	select {
	case s.checks <- struct{}{}:
	default:
		return
	}
	ask := rpc.Ask{Action: rpc.Check, Session: m.Reader.Place.Session, Stream: m.Reader.Place.Stream, Since: m.since}
	s.attached.work.Go(func() {
		defer func() { <-s.checks }()
		ctx, cancel := context.WithTimeout(s.subs.Base, takenTimeout)
		defer cancel()
		_, err := ask.Do(ctx, s.nc)
		gone := errors.Is(err, rpc.ErrNobody)
		sure := gone && s.subs.Parts.CatchUp(ctx, ask.Session) == nil
		m.Do(func() {
			if gone {
				m.noBridge(time.Now(), sure)
			} else {
				m.unheard = absence{}
			}
		})
	})
}

// noBridge gives the call up when no bridge has listened for long. The last one may have stored the response,
// so first the window has to reach the end that the log had then, and all messages have to be sent.
func (m *streamForm) noBridge(now time.Time, sure bool) {
	if !m.unheard.note(now, m.service.unheardFor) || !sure || !m.SendAll() {
		return
	}
	m.service.metrics.abandoned.Inc()
	m.lost = true
	m.WriteEnd()
}
