package mcpedge

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
)

// attachments see to it that of all connections to one stream the newest gets the
// messages (MCP 2025-11-25, Transports, Multiple Connections), whichever edges they are
// at. The older ones are quiet, and one takes over from the same cursor when it ends.
//
//	GET ──▶ claim: the record is this edge's ──▶ join ──▶ begin: the newest one's turn
//	          another edge's record ──▶ silence, send the cursor
//	          the newest ends ──▶ the next one here, or the record is released
//
// The record of a stream says which edge the newest connection is at. A POST's own
// stream needs none: no other connection can exist before. An edge that has gone is known
// by its silence. Without NATS every edge is by itself.
//
// The newest record that an edge knows says what its connections do; what fails is tried again with the
// next sign of life:
//
//	record         | one of them gets the messages     | all are quiet
//	of this edge   | it does until a newer one joins   | the newest gets them, unless a newer one is coming
//	of another one | it is quiet, and sends its cursor | they are until that edge has gone
//	released       | it does, and takes it over        | the newest takes over
//	not known      | it does, and claims again (a GET) | they are
//
// Workers call join and leave, and never wait for it: what takes a request to NATS goes
// on in a goroutine of its own.
//
// A GET claims its record before its first byte, so of two connections the one made later is
// the newer one. A quiet connection never reads. Between its claim and its turn a connection is
// in coming: one that ends meanwhile must not release the record.
type attachments struct {
	edge    string // its ID
	records *attachRecords
	base    context.Context //nolint:containedctx // of the edge
	work    sync.WaitGroup  // of claims and the like, which end by themselves
	// claimWithin is how long a client waits for its claim, and cursorWithin for the cursor of a connection at another edge.
	claimWithin, cursorWithin time.Duration
	beatEvery                 time.Duration // between two signs of life

	mu      sync.Mutex
	streams map[string]*attached // by the record's key
	coming  map[string]int       // claims whose connections have not joined yet, by the same
	latest  map[string]shown     // the newest records that were shown meanwhile, by the same
	heard   map[string]time.Time // when other edges were, last
	// unreleased are where connections stood whose records may not have been released, by the same.
	unreleased map[string]string
}

// connection is a stream of a client that may have several.
type connection struct {
	*delivery.Connection
	// claim is that of a GET.
	claim claim
	// withoutCursor says that it came without a cursor: it continues where the connection before it stands.
	withoutCursor bool
}

// endsInGap reports whether all that the client receives is that its event ID cannot be continued. Such a
// connection claims nothing: its client may have made the ID up, and each name would make a record.
func (conn *connection) endsInGap() bool { return conn.EndsAtGap && len(conn.Reader.Pending) > 0 }

// attached are the connections to one stream that this edge has.
type attached struct {
	connections []*connection // oldest first
	// holder gets the messages; nil while no connection here does.
	holder *connection
	// record is the newest that is known of, and revision its revision; 0 for one that may be another one
	// by now. written is when this edge wrote it.
	record   attachRecord
	revision uint64
	written  time.Time
	// incoming takes the cursor that another edge sends; nil without a waiter.
	incoming chan string
}

// add takes in a connection, after those that claimed the stream before it.
func (at *attached) add(conn *connection) {
	i := len(at.connections)
	for c := conn.claim.revision; c != 0 && i > 0 && at.connections[i-1].claim.revision > c; i-- {
	}
	at.connections = slices.Insert(at.connections, i, conn)
}

func (at *attached) newest() *connection { return at.connections[len(at.connections)-1] }

// owner is whose a record is.
type owner uint8

const (
	unknown owner = iota
	thisEdge
	otherEdge
	released
)

func (a *attachments) owner(r attachRecord) owner {
	switch {
	case r.Edge == "":
		return unknown
	case r.Released:
		return released
	case r.Edge == a.edge:
		return thisEdge
	default:
		return otherEdge
	}
}

const (
	claimTimeout  = 500 * time.Millisecond // of a claim, which a client waits for
	cursorTimeout = time.Second            // to wait for the cursor of a connection at another edge
	attachBeat    = 10 * time.Second       // between two signs of life
	attachSilence = 35 * time.Second       // after which an edge has gone
	attachRenewal = 20 * time.Minute       // of a record, which expires in NATS after an hour
	maxUnreleased = 10_000                 // beyond, records stay until they expire
)

func newAttachments(base context.Context, records *attachRecords) *attachments {
	return &attachments{
		edge: rand.Text(), records: records, base: base,
		claimWithin: claimTimeout, cursorWithin: cursorTimeout, beatEvery: attachBeat,
		streams: map[string]*attached{}, coming: map[string]int{}, latest: map[string]shown{}, heard: map[string]time.Time{},
		unreleased: map[string]string{},
	}
}

// attachKey is the key of a stream's record. No name has the token of a session's flow.
func attachKey(at window.Place) string {
	if at.Stream == "" {
		return event.Token(at.Session) + ".=flow"
	}
	return event.Token(at.Session) + "." + event.Token(at.Stream)
}

// join takes in a connection that has begun. One that is quiet gets its turn; the
// other kind has it, since it is the first of its stream.
func (a *attachments) join(conn *connection) {
	if conn.endsInGap() {
		return
	}
	key := attachKey(conn.Reader.Place)
	conn.withoutCursor = conn.Turns.WithoutCursor // which belongs to its worker
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.streams[key]
	if at == nil {
		at = &attached{}
		a.streams[key] = at
	}
	at.add(conn)
	if !conn.IsQuiet() {
		at.holder = conn
		return
	}
	if s, ok := a.latest[key]; ok {
		a.apply(key, at, s)
	}
	a.came(key)
	a.begin(key, at, conn.claim)
}

// came notes that the connection of a claim has joined, or never will. The caller
// holds the lock.
func (a *attachments) came(key string) {
	if a.coming[key]--; a.coming[key] == 0 {
		delete(a.coming, key)
		delete(a.latest, key)
	}
}

// miss ends the claim of a connection that does not join.
func (a *attachments) miss(key string, c claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.came(key)
	switch at := a.streams[key]; {
	case at == nil: // it closed before its turn: release the record, so that the connection that it silenced resumes at once
		a.work.Go(func() { a.release(key, "") })
	case c.revision > 0 || a.owner(at.record) == thisEdge:
		a.begin(key, at, c)
	}
}

// claim is what came of claiming a stream's record, which is done before the client
// hears anything: so of two connections the one that it made later is the newer one.
type claim struct {
	tried    bool // it may be the edge's even if that did not hear of it
	before   attachRecord
	revision uint64 // 0 when it could not be claimed
}

// claim makes a stream's record this edge's. The connection must join, or be missed.
func (a *attachments) claim(key string) claim {
	a.mu.Lock()
	a.coming[key]++ // or who ends meanwhile would release the record
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(a.base, a.claimWithin)
	defer cancel()
	before, revision, err := a.records.claim(ctx, key, a.edge)
	if err != nil { // clients make as many as they like while NATS is unavailable
		a.records.trouble.Note(ctx, "claim", "MCP connections are not known to other edges", slog.Any("error", err))
		return claim{tried: true}
	}
	return claim{true, before, revision}
}

// leave lets go of a connection that has ended, at a place in its stream.
func (a *attachments) leave(conn *connection, where string) {
	key := attachKey(conn.Reader.Place)
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.streams[key]
	if at == nil {
		return
	}
	at.connections = slices.DeleteFunc(at.connections, func(other *connection) bool { return other == conn })
	if at.holder == conn {
		at.holder = nil
		switch {
		case len(at.connections) == 0 && (a.owner(at.record) != unknown || conn.claim.tried):
			a.work.Go(func() { a.release(key, where) })
		case len(at.connections) > 0 && a.owner(at.record) != otherEdge: // else the claim of this one failed, and that edge has the newest
			a.turn(at, at.newest(), where)
		}
	}
	if len(at.connections) == 0 {
		delete(a.streams, key)
	}
}

// turn has a connection get the messages from now on. The caller holds the lock.
func (a *attachments) turn(at *attached, conn *connection, where string) {
	at.holder = conn
	conn.Turn(where)
}

// begin has the newest connection get the messages, after a claim. The caller holds the lock.
func (a *attachments) begin(key string, at *attached, c claim) {
	if c.revision > at.revision {
		at.record, at.revision, at.written = attachRecord{Edge: a.edge}, c.revision, time.Now()
	}
	old, conn := at.holder, at.newest()
	if old == conn || c.revision > 0 && a.owner(at.record) != thisEdge {
		return // another claim was later, here or elsewhere
	}
	at.holder = conn
	var cursor func() string
	switch {
	case old != nil:
		cursor = a.silence(old)
	case c.revision == 0 || !conn.withoutCursor || !a.alive(c.before):
		a.turn(at, conn, "")
		return
	case at.record.From != "": // before anybody waited for it
		a.turn(at, conn, at.record.From)
		return
	default:
		incoming := make(chan string, 1)
		at.incoming = incoming
		cursor = func() string { return a.awaitCursor(incoming) }
	}
	a.work.Go(func() {
		where := cursor()
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.streams[key] == at && at.holder == conn {
			a.turn(at, conn, where)
		}
	})
}

// alive reports whether a record is of an edge that can send its cursor. The caller holds the lock.
func (a *attachments) alive(r attachRecord) bool {
	return r.Edge != "" && r.Edge != a.edge && !r.Released && time.Since(a.heard[r.Edge]) < attachSilence
}

// silence has a connection be quiet, before what it is to do later, and returns how to wait for where it
// stands then: at the latest when the log has been read for it. Who took over before would leave out what it
// had yet to send. The caller holds the lock.
func (a *attachments) silence(conn *connection) (where func() string) {
	silenced := make(chan string, 1)
	conn.Silence(silenced)
	return func() string {
		select {
		case where := <-silenced:
			return where
		case <-a.base.Done():
			return ""
		}
	}
}

// awaitCursor returns the cursor of another edge's connection, once that edge has written it into
// the record that this one has claimed; empty when it does not come in time.
func (a *attachments) awaitCursor(incoming <-chan string) string {
	timer := time.NewTimer(a.cursorWithin)
	defer timer.Stop()
	select {
	case where := <-incoming:
		return where
	case <-timer.C:
	case <-a.base.Done():
	}
	return ""
}

// release lets another edge's connection take over, unless there is one here again, or one
// is coming. A record that another edge has written for this one meanwhile has another revision. What
// fails is tried again with the next sign of life.
func (a *attachments) release(key, where string) {
	err := a.records.change(a.base, key, func(now attachRecord) (attachRecord, bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		stays := a.streams[key] != nil || a.coming[key] > 0
		return attachRecord{Edge: a.edge, From: where, Released: true}, !stays && now.Edge == a.edge && !now.Released
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) && len(a.unreleased) < maxUnreleased {
		a.unreleased[key] = where
	}
}

// takeOver makes a record that another edge has released, or left behind, this edge's.
func (a *attachments) takeOver(key string, revision uint64, where string) {
	r := attachRecord{Edge: a.edge, From: where}
	now, err := a.records.update(a.base, key, r, revision)
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.streams[key]
	if at == nil { // what failed may have been written
		a.work.Go(func() { a.release(key, where) })
		return
	}
	if err != nil || now < at.revision {
		return // another edge was faster, or has claimed it since; or it is written and will be shown
	}
	at.record, at.revision, at.written = r, now, time.Now()
	if at.holder == nil {
		a.turn(at, at.newest(), where)
	}
}

// takeLeft takes over a record that is free, or still the same edge's that has gone.
func (a *attachments) takeLeft(key string, known attachRecord) {
	r, revision, err := a.records.read(a.base, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound): // it was lost, or has expired
	case err != nil || !r.Released && (known.Released || r.Edge != known.Edge):
		return
	case !r.Released:
		r.From = "" // where another connection stood before it
	}
	a.takeOver(key, revision, r.From)
}

// sendCursor sends the cursor of the connection here to the edge that has claimed its stream, in the
// record.
func (a *attachments) sendCursor(key string, cursor func() string, to string, revision uint64) {
	where := cursor()
	_, _ = a.records.update(a.base, key, attachRecord{Edge: to, From: where}, revision) // it does not wait for long
}

// show takes what a record says now.
func (a *attachments) show(key string, r attachRecord, revision uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := shown{r, revision}
	if at := a.streams[key]; at != nil {
		a.apply(key, at, s)
	}
	if a.coming[key] > 0 { // the record may have been claimed again before the connection joins
		a.latest[key] = s
	}
}

// shown is what a record said.
type shown struct {
	record   attachRecord
	revision uint64
}

// apply has an edge follow what the record of a stream says. The caller holds the lock.
func (a *attachments) apply(key string, at *attached, s shown) {
	r, revision := s.record, s.revision
	if revision <= at.revision {
		return
	}
	at.record, at.revision = r, revision
	switch old := at.holder; a.owner(r) {
	case thisEdge:
		if at.written.IsZero() { // the claim was not answered
			at.written = time.Now()
		}
		if r.From != "" && at.incoming != nil {
			at.incoming <- r.From // there is room for one, and only one comes
			at.incoming = nil
		}
		if old == nil && a.coming[key] == 0 { // a take-over was written, but not answered
			a.turn(at, at.newest(), r.From)
		}
	case otherEdge:
		if old != nil {
			at.holder = nil
			cursor := a.silence(old)
			a.work.Go(func() { a.sendCursor(key, cursor, r.Edge, revision) })
		}
	case released:
		a.work.Go(func() { a.takeOver(key, revision, r.From) })
	case unknown:
	}
}

// dropRevisions drops all revisions: the records may be others when they are followed again.
func (a *attachments) dropRevisions() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.streams {
		at.revision = 0
	}
	clear(a.latest)
}

// hear notes a sign of life of another edge.
func (a *attachments) hear(edge string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard[edge] = time.Now()
}

// tend takes over from edges that have gone, renews records, or writes them again that NATS has
// lost (no revision means that there must be none), and tries again what failed.
func (a *attachments) tend(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, at := range a.streams {
		known, revision := at.record, at.revision
		switch owner := a.owner(known); {
		case owner == released, owner == otherEdge && at.holder == nil && now.Sub(a.heard[known.Edge]) > attachSilence:
			a.work.Go(func() { a.takeLeft(key, known) })
		case at.holder == nil:
		case owner != thisEdge:
			if at.holder.claim.tried {
				a.work.Go(func() { a.miss(key, a.claim(key)) })
			}
		case revision == 0 || now.Sub(at.written) > attachRenewal:
			a.work.Go(func() { a.renew(key, revision) })
		}
	}
	if again := a.unreleased; len(again) > 0 && a.records.connected() {
		a.unreleased = map[string]string{}
		a.work.Go(func() {
			for key, where := range again {
				a.release(key, where)
			}
		})
	}
	for edge, at := range a.heard {
		if now.Sub(at) > 2*attachSilence {
			delete(a.heard, edge)
		}
	}
}

func (a *attachments) renew(key string, revision uint64) {
	now, err := a.records.update(a.base, key, attachRecord{Edge: a.edge}, revision)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch at := a.streams[key]; {
	case at == nil: // it has gone meanwhile, and did not know of the record, which may be written all the same
		a.work.Go(func() { a.release(key, "") })
	case err == nil && at.revision == revision:
		at.revision, at.written = now, time.Now()
	}
}

// open has the records ready before the first client comes, if NATS is there.
func (a *attachments) open(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	if err := a.records.open(ctx); err != nil {
		a.records.trouble.Note(ctx, "open", "the attach records are not there yet", slog.Any("error", err))
	}
}

// run follows the records and gives signs of life, until ctx ends.
func (a *attachments) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { a.records.follow(ctx, a.edge, a) })
	ticker := time.NewTicker(a.beatEvery)
	defer ticker.Stop()
	for last := time.Now(); ; last = time.Now() {
		a.records.beat(ctx, a.edge)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			a.tick(time.Now(), last, a.records.connected())
		}
	}
}

// tick is what is done between two signs of life. While NATS was down, or the process was paused
// (SIGSTOP, a frozen container), no other edge was heard, and none is silent for that.
func (a *attachments) tick(now, last time.Time, connected bool) {
	if !connected || now.Sub(last) > 2*a.beatEvery {
		a.mu.Lock()
		for edge := range a.heard {
			a.heard[edge] = now
		}
		a.mu.Unlock()
	}
	a.tend(now)
}
