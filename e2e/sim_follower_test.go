package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/shared/event"
	"rejoin/shared/sse"
)

// follower is a client that follows several sessions over many connections, and may reconnect with any ID
// that it ever received. So its receipts are a tree: a branch begins where it reconnected with an older ID.
type follower struct {
	w        *world
	pictures *pictures
	n        int
	rng      *rand.Rand
	streams  []string // of each session; none for all
	method   string   // a filter, if not empty
	fromNow  bool     // and not from the start
	crowd    int      // it also names so many that there is no session of

	mu     sync.Mutex
	final  bool // it stays connected until it has everything
	ended  bool
	cancel context.CancelFunc
	newest *receipt   // with which it reconnects, if not with an older one
	usable []*receipt // those with an ID
	all    []*receipt
}

func (f *follower) String() string {
	return fmt.Sprintf("follower %d (streams %q, method %s, now %t, crowd %d)", f.n, f.streams, f.method, f.fromNow, f.crowd)
}

// receipt is something that a follower received, or a connection that it made. Those before it, up to the
// root of the tree, are its past.
type receipt struct {
	before   *receipt
	number   int
	at       time.Duration
	what     string // "connect", "message", "gap", or the type of an event with nothing but an ID
	edge     string
	asks     []ask  // from here on
	id       string // with which the client may reconnect
	position map[int]cursor.GroupPosition
	session  string // of a message, or a gap: it may be a pattern
	stream   string
	sequence uint64
	gap      *toldGap
	certain  bool // the gap has to be
	picture  int  // the first one that was begun later
}

func (r *receipt) String() string {
	from := -1
	if r.before != nil {
		from = r.before.number
	}
	s := fmt.Sprintf("%8s %d<-%d %s %s", r.at.Round(time.Millisecond), r.number, from, r.edge, r.what)
	switch {
	case r.gap != nil:
		s += " of " + r.session + " " + r.gap.String()
	case r.what == "message":
		s += fmt.Sprintf(" %d of %s/%s", r.sequence, r.session, r.stream)
	case r.what == "connect":
		s += fmt.Sprint(" ", r.asks)
	}
	return s + " " + r.id
}

// add enters the next receipt.
func (c *following) add(r receipt) {
	f := c.follower
	f.mu.Lock()
	defer f.mu.Unlock()
	r.before, r.number, r.at, r.edge = c.last, len(f.all), time.Since(f.w.begun), c.life
	r.asks, r.picture = c.asks, f.pictures.next()
	if r.position != nil {
		f.pictures.want()
	}
	c.last = &r
	f.all = append(f.all, &r)
	if r.id != "" {
		f.usable, f.newest = append(f.usable, &r), &r
	}
}

// following is one connection of a follower.
type following struct {
	*follower
	life   string // of the edge
	opened time.Time
	asks   []ask
	last   *receipt
}

// connect makes one request, and reads so many events at most.
func (f *follower) connect(ctx context.Context, edge int, from *receipt, asks []ask, most int) {
	addr, life := f.w.edges[edge].at()
	if addr == "" {
		return
	}
	c := &following{follower: f, life: life, opened: time.Now(), asks: asks, last: from}
	resp, err := f.w.client.Do(f.request(ctx, addr, from, asks))
	if err != nil {
		return
	}
	defer func() { _ = resp.Body.Close() }()
	c.add(receipt{what: "connect"})
	switch {
	case resp.StatusCode == http.StatusOK:
		dec := sse.NewDecoder(resp.Body, 32<<20)
		for range most {
			ev, err := dec.Next()
			if err != nil || ctx.Err() != nil {
				return
			}
			c.event(ev)
		}
	case resp.StatusCode != http.StatusServiceUnavailable:
		body, _ := io.ReadAll(resp.Body)
		f.w.violate("%s: %s answers %d %s", f, life, resp.StatusCode, body)
	}
}

// event handles an event of an event stream.
func (c *following) event(ev sse.Event) {
	r := receipt{what: ev.Type}
	if ev.HasID && ev.ID != "" {
		id, err := cursor.ParseGroupID(ev.ID)
		if err != nil {
			c.w.violate("%s: the ID %q: %v", c.follower, ev.ID, err)
		}
		r.id, r.position = ev.ID, id.At
	}
	switch ev.Type {
	case "gap":
		var gap struct {
			toldGap
			Session string
		}
		if err := json.Unmarshal(ev.Data, &gap); err != nil {
			c.w.violate("%s: the gap %q: %v", c.follower, ev.Data, err)
			return
		}
		c.gap(&gap.toldGap, gap.Session)
		r.what = "gap's ID"
	case "connect", "cursor", "state", "expiring":
	default:
		r.what = "message"
		if err := c.message(&r, ev.Data); err != nil {
			c.w.violate("%s: the event %q: %v", c.follower, ev.Data, err)
			return
		}
	}
	if r.what == "message" || r.id != "" {
		c.add(r)
	}
}

// message reads the session and the stream of an event.
func (c *following) message(r *receipt, data []byte) error {
	var e struct {
		pageEvent
		Session string
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	id, err := event.ParseID(e.ID)
	if err != nil || id.Stream != e.Stream {
		return fmt.Errorf("it has the ID %s: %w", e.ID, err)
	}
	r.session, r.stream, r.sequence = e.Session, e.Stream, id.Sequence
	if at := r.position[c.w.truth.partition(r.session)]; at.Sequence != r.sequence && at.Added != r.sequence {
		return fmt.Errorf("it comes with the position %+v", at)
	}
	return nil
}

// gap enters a gap of a session, or of a pattern.
func (c *following) gap(gap *toldGap, of string) {
	at, err := event.ParseID(gap.ResumesAt)
	if err != nil {
		c.w.violate("%s: a gap of %s that resumes at %q: %v", c.follower, of, gap.ResumesAt, err)
	}
	gap.resumesAt = at.Sequence
	c.w.count(fmt.Sprintf("gap %s certain=%t", gap.Reason, gap.Certain))
	doubtful := false
	for p := range c.w.sc.settings.Partitions {
		doubtful = doubtful || c.w.doubtful(p, c.opened) != ""
	}
	c.add(receipt{what: "gap", session: of, gap: gap, certain: !doubtful})
	c.pictures.want()
}

// hasCaughtUp reports whether the follower has come to the newest events.
func (f *follower) hasCaughtUp() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range sessionNames {
		if _, is := follows(f.newest.asks, name); !is {
			continue
		}
		at := f.newest.position[f.w.truth.partition(name)]
		for _, e := range f.w.truth.all(name) {
			if f.wants(e) && e.sequence > min(at.Sequence, at.Added) {
				return false
			}
		}
	}
	return f.newest.id != ""
}

// pictures are the states of the partitions at moments. One is taken after each receipt that has an ID or
// is a gap; those that come while one is taken share the next.
type pictures struct {
	truth  *truth
	wanted chan struct{}
	begun  atomic.Int64

	mu    sync.Mutex  // not held for long: virtual time stands still while a goroutine waits for it
	taken [][]picture // by partition
}

// picture has the sequences that a partition held.
type picture struct {
	first, last uint64
	deleted     map[uint64]bool // in between
}

func newPictures(w *world) *pictures {
	ps := &pictures{truth: w.truth, wanted: make(chan struct{}, 1)}
	w.watch.Go(func() {
		for {
			select {
			case <-w.ctx.Done():
				return
			case <-ps.wanted:
				ps.take(w.ctx)
			}
		}
	})
	return ps
}

func (ps *pictures) want() {
	select {
	case ps.wanted <- struct{}{}:
	default:
	}
}

// next returns the number of the first picture that is begun from now on.
func (ps *pictures) next() int { return int(ps.begun.Load()) }

// reached reports whether so many were taken.
func (ps *pictures) reached(n int) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return len(ps.taken) >= n
}

// take takes a picture; errors that pass are waited out.
func (ps *pictures) take(ctx context.Context) {
	ps.begun.Add(1)
	all := make([]picture, ps.truth.partitions)
	for p := range all {
		var err error
		if all[p], err = ps.truth.picture(ctx, p); err != nil {
			return // the world has ended
		}
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.taken = append(ps.taken, all)
}
