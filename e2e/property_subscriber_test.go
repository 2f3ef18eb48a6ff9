package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/sse"
)

// received is one thing that a subscriber saw.
type received struct {
	at       time.Duration
	conn     int
	edge     string
	what     string // "message", "gap", "connect", "cursor", "close", or a change of the connection
	position uint64 // of the ID
	stream   string
	data     []byte
	gap      *toldGap
	note     string
}

func (r received) String() string {
	s := fmt.Sprintf("%8s #%d %s %s", r.at.Round(time.Millisecond), r.conn, r.edge, r.what)
	if r.position != 0 {
		s += fmt.Sprintf(" %d", r.position)
	}
	if r.stream != "" {
		s += " of " + r.stream
	}
	if r.gap != nil {
		s += " " + r.gap.String()
	}
	if r.note != "" {
		s += " " + r.note
	}
	return s
}

// toldGap is a gap that a subscriber received.
type toldGap struct {
	Reason    string  `json:"reason"`
	Certain   bool    `json:"certain"`
	Stream    *string `json:"stream"`
	Requested string  `json:"requested"`
	ResumesAt string  `json:"resumesAt"`

	requested, resumesAt uint64
	// removed are the events after requested that were removed soon after the gap was
	// sent and that the subscriber did not have; phantom means that another entry after
	// requested was lost before its session was known.
	removed []stored
	phantom bool
	doubtTo uint64 // of damage: events up to here may be missing
	// why is the reason why the gap may be uncertain, where a log is rolled back.
	why string
	// late means that it is of a generation that began late, or was removed, and no event
	// need be missing.
	late bool
}

func (g *toldGap) String() string {
	stream := "null"
	if g.Stream != nil {
		stream = *g.Stream
	}
	removed := make([]string, 0, len(g.removed))
	for _, s := range g.removed {
		removed = append(removed, fmt.Sprintf("%s:%d", s.subject.Stream, s.sequence))
	}
	return fmt.Sprintf("{%s certain=%t stream=%s %s..%s removed=%v phantom=%t}", g.Reason, g.Certain, stream, g.Requested, g.ResumesAt, removed, g.phantom)
}

// about reports whether the gap is about a stream's events.
func (g *toldGap) about(stream string) bool { return g.Stream == nil || *g.Stream == stream }

// subscriber is a client that saves its cursor and reconnects with it.
type subscriber struct {
	w    *world
	n    int
	plan subPlan
	done chan struct{}

	mu        sync.Mutex
	wake      chan struct{} // closed and replaced when the driver changes its mind
	joined    bool
	away      bool
	ended     bool
	edge      int
	query     bool // resume with after= and not with the header
	cutAfter  int  // 0: not
	awayAfter bool // stay away after that cut
	cancel    context.CancelFunc

	cursor    string // the saved one
	begun     bool   // it knows where it began
	begin     uint64
	position  uint64 // of the newest ID
	finished  bool   // 204, or a page that says closed
	refused   *refusal
	log       []received
	delivered map[uint64]string // sequence → stream
	excused   map[uint64]bool   // on a flow: the events removed before it connected
	conns     int
}

func newSubscriber(w *world, n int, plan subPlan) *subscriber {
	s := &subscriber{w: w, n: n, plan: plan, done: make(chan struct{}), wake: make(chan struct{}), delivered: map[uint64]string{}, excused: map[uint64]bool{}}
	if plan.from == "unknown" {
		s.cursor = event.ID{Stream: plan.stream, Tag: foreignTags[0], Sequence: 5}.String()
		if n%2 == 0 {
			s.cursor = "nonsense"
		}
	}
	go s.run()
	return s
}

// foreignTags are of no place, but for 1 in 47,000 places each: the edge then takes an ID
// for one of a lost generation, and follows it (ADR 0002).
var foreignTags = [2]string{"zzzzzzz", "yyyyyyy"}

// avoidCoincidence changes a foreign cursor that looks like one of the subscriber's own
// place. The caller holds mu.
func (s *subscriber) avoidCoincidence() {
	const placeLen = 3 // characters of a tag, without those of the generation
	id, err := event.ParseID(s.cursor)
	if s.begun || err != nil || id.Tag != foreignTags[0] {
		return
	}
	at := s.place()
	state, _ := s.w.own.Log.State(s.w.own.Log.Partition(at.session))
	rec, _ := s.w.own.Sessions.Session(at.session)
	for _, life := range []string{rec.Life, ""} {
		tag := event.TagParts{Origin: state.Origin, Session: at.session, Life: life, Stream: at.stream}.Tag()
		if tag[:placeLen] == foreignTags[0][:placeLen] {
			id.Tag = foreignTags[1]
			s.cursor = id.String()
		}
	}
}

func (s *subscriber) place() place { return place{s.plan.session, s.plan.stream} }

func (s *subscriber) String() string { return fmt.Sprintf("subscriber %d of %s", s.n, s.place()) }

// tell changes the subscriber's state.
func (s *subscriber) tell(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.wake)
	s.wake = make(chan struct{})
}

func (s *subscriber) cut() {
	if s.cancel != nil {
		s.cancel()
	}
}

func (s *subscriber) end() {
	s.tell(func() { s.ended = true; s.cut() })
	<-s.done
}

func (s *subscriber) run() {
	defer close(s.done)
	for {
		s.mu.Lock()
		wake, ended, idle := s.wake, s.ended, !s.joined || s.away || s.finished
		edge := s.edge
		if s.refused != nil {
			edge = s.refused.edge
		}
		s.mu.Unlock()
		if ended {
			return
		}
		if idle {
			<-wake
			continue
		}
		if !s.connect(edge) {
			s.mu.Lock()
			s.edge = (s.edge + 1) % len(s.w.edges)
			s.mu.Unlock()
			select {
			case <-wake:
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// note adds an entry to the log. The caller holds mu.
func (s *subscriber) note(r received) {
	r.at, r.conn = time.Since(s.w.begun), s.conns
	s.log = append(s.log, r)
}

// connect makes one request and reports whether anything came of it.
func (s *subscriber) connect(n int) bool {
	addr, life := s.w.edges[n].at()
	if addr == "" {
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.mu.Lock()
	if s.ended || s.away {
		s.mu.Unlock()
		return true
	}
	s.cancel = cancel
	s.conns++
	s.avoidCoincidence()
	q := url.Values{}
	if s.cursor != "" && (s.query || s.plan.poll) {
		q.Set("after", s.cursor)
	}
	if s.cursor == "" && s.plan.from == "now" {
		q.Set("from", "now")
	}
	this := &connection{subscriber: s, life: life, opened: time.Now(), asked: s.cursor, cleared: s.w.sent(life), refusal: s.refused}
	if this.strict = s.plan.strict && s.cursor != "" && s.refused == nil; this.strict {
		q.Set("on_gap", "error")
	}
	if s.plan.poll {
		q.Set("limit", strconv.Itoa(s.plan.limit))
		q.Set("wait", strconv.Itoa(s.conns%2))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+eventsPath(s.place())+"?"+q.Encode(), nil)
	if err != nil {
		panic(err)
	}
	if s.cursor != "" && !s.query && !s.plan.poll {
		req.Header.Set("Last-Event-ID", s.cursor)
	}
	req.Header.Set("Accept", "text/event-stream")
	if s.plan.poll {
		req.Header.Set("Accept", "application/json")
	}
	if !s.plan.poll {
		s.note(received{what: "open", edge: life, note: s.cursor})
	}
	s.mu.Unlock()
	resp, err := s.w.client.Do(req)
	if err != nil {
		return ctx.Err() != nil
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusOK && s.plan.poll:
		return this.page(ctx, resp.Body)
	case resp.StatusCode == http.StatusOK:
		return this.stream(ctx, resp.Body)
	case resp.StatusCode == http.StatusGone && this.strict:
		return this.refuse(ctx, resp.Body, n)
	case resp.StatusCode == http.StatusNoContent && !s.plan.poll:
		s.tell(func() {
			this.goesOn("204")
			s.finished = true
			s.note(received{what: "204", edge: life})
			if !s.begun && s.plan.from == "now" {
				s.begun, s.begin = true, ^uint64(0) // it connected after the end
			}
		})
		return true
	case resp.StatusCode == http.StatusServiceUnavailable && s.plan.poll:
		return false
	default:
		body, _ := io.ReadAll(resp.Body)
		s.w.violate("%s: %s answers %d %s", s, life, resp.StatusCode, body)
		return false
	}
}

// connection is one answer to a subscriber.
type connection struct {
	*subscriber
	life      string
	opened    time.Time
	asked     string // the cursor that it began with
	connected bool
	cleared   map[int]uint64 // how far this edge is known to have been when the request was made
	strict    bool           // it asked for an error instead of a gap
	refusal   *refusal       // why the one before was refused
}

// stream reads an event stream.
func (c *connection) stream(ctx context.Context, body io.Reader) bool {
	dec := sse.NewDecoder(body, 32<<20)
	some := false
	for {
		ev, err := dec.Next()
		c.mu.Lock()
		if ctx.Err() != nil || c.ended {
			// Events after the cut were never seen.
			c.note(received{what: "cut", edge: c.life})
			c.mu.Unlock()
			return true
		}
		if err != nil {
			c.note(received{what: "end", edge: c.life, note: err.Error()})
			c.mu.Unlock()
			return some
		}
		some = true
		c.event(ev)
		if c.cutAfter > 0 {
			if c.cutAfter--; c.cutAfter == 0 {
				c.away = c.awayAfter
				c.note(received{what: "cut-after", edge: c.life})
				c.mu.Unlock()
				return true
			}
		}
		c.mu.Unlock()
	}
}

// event takes one block. The caller holds mu.
func (c *connection) event(ev sse.Event) {
	r := received{what: ev.Type, edge: c.life, data: bytes.Clone(ev.Data)}
	if ev.HasID {
		id, err := event.ParseID(ev.ID)
		if err != nil || id.Stream != c.plan.stream {
			c.w.violate("%s: the ID %q: %v", c, ev.ID, err)
		}
		r.position = id.Sequence
	}
	if !c.connected && ev.Type != "connect" {
		c.w.violate("%s: the first event is %s", c, ev.Type)
	}
	if ev.Type != "connect" && ev.Type != "gap" && (ev.Type != "cursor" || ev.ID != c.asked) {
		c.goesOn(ev.Type)
	}
	switch ev.Type {
	case "connect":
		c.connected = true
		if c.asked == "" && ev.HasID { // else a gap follows, with the cursor
			c.start(r.position, c.plan.from != "now")
		}
	case "cursor":
	case "close":
	case "gap":
		r.gap = c.gap(ev.Data)
	default:
		r.what = "message"
		r.stream = c.plan.stream
		if c.plan.stream == "" {
			var o pageEvent
			if err := json.Unmarshal(ev.Data, &o); err != nil {
				c.w.violate("%s: an envelope %q: %v", c, ev.Data, err)
			}
			r.stream = o.Stream
			c.object(o, r.position)
		} else {
			c.message(r.stream, r.position, ev.Type, r.data, false)
		}
	}
	if ev.HasID {
		if r.position < c.position && r.gap == nil && ev.Type != "connect" {
			c.w.violate("%s: %s moves the cursor back from %d to %d", c, ev.Type, c.position, r.position)
		}
		c.cursor = ev.ID
		c.position = max(c.position, r.position)
	}
	c.note(r)
}

// start notes where a subscriber without a cursor begins; all means that all retained
// events should follow.
func (c *connection) start(at uint64, all bool) {
	if c.begun {
		return
	}
	c.begun, c.begin = true, at
	if all && !c.w.sc.copies {
		s := c.subscriber
		c.w.tasks.Go(func() { c.w.checkStart(s, at) })
	}
}

// pageEvent is an event as JSON, in a page and in an envelope.
type pageEvent struct {
	ID, Stream, Type string
	Time             time.Time
	Message          json.RawMessage
}

func (c *connection) object(o pageEvent, position uint64) {
	id, err := event.ParseID(o.ID)
	if err != nil || id.Stream != o.Stream || position != 0 && id.Sequence != position {
		c.w.violate("%s: an event with the ID %q of stream %q at %d: %v", c, o.ID, o.Stream, position, err)
	}
	c.message(o.Stream, id.Sequence, o.Type, o.Message, true)
}

// message checks one event as far as that can be done at once.
func (c *connection) message(stream string, sequence uint64, typ string, data []byte, same bool) {
	if c.w.sc.copies {
		return // an event may come again; checkLives looks at everything at the end
	}
	p := c.w.truth.partition(c.plan.session)
	if of, ok := c.delivered[sequence]; ok {
		c.w.violate("%s: event %d of %s came again", c, sequence, of)
	}
	if sequence <= c.position && c.begun {
		c.w.violate("%s: event %d comes behind the position %d", c, sequence, c.position)
	}
	c.delivered[sequence] = stream
	c.w.sends(c.life, p, sequence)
	session, asOf := c.plan.session, c.cleared[p]
	s := c.subscriber
	data = bytes.Clone(data)
	c.w.tasks.Go(func() { c.w.checkMessage(s, session, stream, sequence, typ, data, same, asOf) })
}

// gap reads a gap and has it checked.
func (c *connection) gap(data []byte) *toldGap {
	g := &toldGap{}
	if err := json.Unmarshal(data, g); err != nil {
		c.w.violate("%s: a gap %q: %v", c, data, err)
		return nil
	}
	c.told(g)
	return g
}

func (c *connection) told(g *toldGap) {
	at, err := event.ParseID(g.ResumesAt)
	if err != nil || at.Stream != c.plan.stream {
		c.w.violate("%s: a gap resumes at %q: %v", c, g.ResumesAt, err)
	}
	g.resumesAt = at.Sequence
	s := c.subscriber
	c.toldAgain(g)
	if g.Reason == "unknown" {
		if c.begun && c.w.opensAgain(c.place(), g.Requested) {
			c.w.count("unknown: the life's opening was torn away")
			g.late, c.begin, c.position = true, g.resumesAt, g.resumesAt
			clear(c.delivered)
			return
		}
		if c.plan.from != "unknown" || c.begun {
			c.w.violate("%s: an ID that it was given is unknown: %s", c, g)
		}
		c.start(g.resumesAt, true)
		return
	}
	from, err := event.ParseID(g.Requested)
	if err != nil || from.Stream != c.plan.stream {
		c.w.violate("%s: a gap after %q: %v", c, g.Requested, err)
	}
	g.requested = from.Sequence
	if c.asked == "" {
		c.start(g.requested, c.plan.from != "now")
	}
	if c.w.sc.copies {
		if g.Reason == "rolled_back" {
			c.position = g.resumesAt
		}
		g.why = c.w.doubtful(c.w.truth.partition(c.plan.session), c.opened)
		return
	}
	if g.Reason == "rolled_back" && (c.w.unattended() || c.w.disowned(c.place(), g.Requested)) {
		c.w.count("rolled back by a generation that began late, or was taken away")
		g.late, c.position = true, g.resumesAt
		maps.DeleteFunc(c.delivered, func(sequence uint64, _ string) bool { return sequence > g.resumesAt })
		return
	}
	had, why := maps.Clone(c.delivered), c.w.doubtful(c.w.truth.partition(c.plan.session), c.opened)
	c.w.tasks.Go(func() { c.w.checkGap(s, g, had, why) })
}

// page reads a page.
func (c *connection) page(ctx context.Context, body io.Reader) bool {
	var page struct {
		Events []pageEvent
		Cursor string
		Gaps   []*toldGap
		Closed bool
	}
	err := json.NewDecoder(body).Decode(&page)
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil || c.ended {
		c.note(received{what: "cut", edge: c.life})
		return true
	}
	if err != nil {
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "reset") {
			c.w.violate("%s: a page: %v", c, err)
		}
		return false
	}
	id, err := event.ParseID(page.Cursor)
	if err != nil || id.Stream != c.plan.stream {
		c.w.violate("%s: the cursor %q of a page: %v", c, page.Cursor, err)
	}
	if len(page.Gaps) == 0 && (len(page.Events) > 0 || page.Closed || page.Cursor != c.asked) {
		c.goesOn("a page")
	}
	for _, g := range page.Gaps {
		c.told(g)
		c.note(received{what: "gap", edge: c.life, gap: g})
	}
	if c.asked == "" {
		at := id.Sequence
		if len(page.Events) > 0 {
			first, _ := event.ParseID(page.Events[0].ID)
			at = first.Sequence - 1
		}
		if c.plan.from == "now" {
			at = min(at, id.Sequence)
		}
		c.start(at, c.plan.from != "now")
	}
	if len(page.Events) > c.plan.limit {
		c.w.violate("%s: a page of %d events", c, len(page.Events))
	}
	for _, o := range page.Events {
		before := c.position
		c.object(o, 0)
		eid, _ := event.ParseID(o.ID)
		if c.plan.stream != "" && o.Stream != c.plan.stream {
			c.w.violate("%s: an event of %s", c, o.Stream)
		}
		c.position = max(before, eid.Sequence)
		c.note(received{what: "message", edge: c.life, stream: o.Stream, position: eid.Sequence, data: o.Message})
	}
	if id.Sequence < c.position {
		c.w.violate("%s: the page's cursor is %d, behind %d", c, id.Sequence, c.position)
	}
	if id.Sequence > c.position || page.Closed {
		c.note(received{what: "cursor", edge: c.life, position: id.Sequence, note: fmt.Sprintf("asked %s closed=%t", c.asked, page.Closed)})
	}
	c.position, c.cursor = max(c.position, id.Sequence), page.Cursor
	c.finished = c.finished || page.Closed
	return true
}

// sameJSON reports whether two texts are the same JSON.
func sameJSON(a, b []byte) bool {
	decode := func(data []byte) any {
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		var v any
		if err := dec.Decode(&v); err != nil {
			return err
		}
		return v
	}
	return reflect.DeepEqual(decode(a), decode(b))
}
