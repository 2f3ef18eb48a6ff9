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

// attachments ensure that of all connections to one stream, at whichever edges, the newest
// receives the messages (MCP 2025-11-25, Transports, Multiple Connections). The older ones
// are quiet, and one takes over from the same cursor when the newest ends.
//
//	GET ──▶ claim: the record is this edge's ──▶ join ──▶ begin: the newest one's turn
//	          another edge's record ──▶ silence, send the cursor
//	          the newest ends ──▶ the next one here, or the record is released
//
// The record of a stream names the edge of the newest connection. A POST's own stream
// needs none: no other connection can exist before. The other edges know by its silence
// that an edge is down. Without NATS every edge is on its own.
//
// The newest record that an edge knows decides about its connections. A failed change is tried again
// with the next sign of life:
//
//	record          | a connection receives the messages      | all are quiet
//	of this edge    | it continues until a newer one joins    | the newest receives them, unless a newer one is coming
//	of another edge | it becomes quiet, and sends its cursor  | they stay quiet until that edge is down
//	released        | it continues, and takes the record over | the newest takes over
//	not known       | it continues, and claims again (a GET)  | they stay quiet
//
// Workers call join and leave, which never wait: requests to NATS are made in goroutines of
// their own.
//
// A GET claims its record before its first byte, so of two connections the one made later is
// the newer one. A quiet connection never reads. Between its claim and its join a connection is
// in coming: another one that ends meanwhile must not release the record.
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
	coming  map[string]int       // claims whose connections have not joined yet, by the same key
	latest  map[string]shown     // the newest records that were shown meanwhile, by the same key
	heard   map[string]time.Time // when each other edge last gave a sign of life
	// unreleased are the cursors of connections whose records may not have been released, by the same key.
	unreleased map[string]string
}

// connection is a stream of a client that may have several.
type connection struct {
	*delivery.Connection
	// claim is that of a GET.
	claim claim
	// withoutCursor says that it came without a cursor: it continues at that of the connection before it.
	withoutCursor bool
}

// endsInGap reports whether the client only receives the error that its event ID cannot be continued. Such
// a connection claims no record: its client may have made the ID up, and each name would create one.
func (conn *connection) endsInGap() bool { return conn.EndsAtGap && len(conn.Reader.Pending) > 0 }

// attached are the connections to one stream that this edge has.
type attached struct {
	connections []*connection // oldest first
	// holder receives the messages; nil while no connection here does.
	holder *connection
	// record is the newest known record, and revision its revision; 0 if another record may have replaced
	// it. written is when this edge wrote it.
	record   attachRecord
	revision uint64
	written  time.Time
	// incoming receives the cursor that another edge sends; nil without a waiter.
	incoming chan string
}

// add adds a connection, after those that claimed the stream before it.
func (at *attached) add(conn *connection) {
	i := len(at.connections)
	for c := conn.claim.revision; c != 0 && i > 0 && at.connections[i-1].claim.revision > c; i-- {
	}
	at.connections = slices.Insert(at.connections, i, conn)
}

func (at *attached) newest() *connection { return at.connections[len(at.connections)-1] }

// owner is the owner of a record.
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
	attachSilence = 35 * time.Second       // after which an edge counts as down
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

// join adds a connection that has begun. A quiet one gets its turn; any other one has it
// already, as the first of its stream.
func (a *attachments) join(conn *connection) {
	if conn.endsInGap() {
		return
	}
	key := attachKey(conn.Reader.Place)
	conn.withoutCursor = conn.Turns.WithoutCursor // Turns belongs to its worker
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

// claim is the result of claiming a stream's record. The claim precedes the first byte of
// the response, so of two connections the one that the client made later is the newer one.
type claim struct {
	tried    bool // the record may be this edge's, even without an answer
	before   attachRecord
	revision uint64 // 0 when it could not be claimed
}

// claim makes a stream's record this edge's. The connection must join, or be missed.
func (a *attachments) claim(key string) claim {
	a.mu.Lock()
	a.coming[key]++ // or a connection that ends meanwhile would release the record
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(a.base, a.claimWithin)
	defer cancel()
	before, revision, err := a.records.claim(ctx, key, a.edge)
	if err != nil { // clients cause any number of these while NATS is unavailable
		a.records.trouble.Note(ctx, "claim", "MCP connections are not known to other edges", slog.Any("error", err))
		return claim{tried: true}
	}
	return claim{true, before, revision}
}

// leave removes a connection that has ended; where is its cursor.
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
		case len(at.connections) > 0 && a.owner(at.record) != otherEdge: // else this connection's claim failed, and that edge has the newest one
			a.turn(at, at.newest(), where)
		}
	}
	if len(at.connections) == 0 {
		delete(a.streams, key)
	}
}

// turn has a connection receive the messages from now on. The caller holds the lock.
func (a *attachments) turn(at *attached, conn *connection, where string) {
	at.holder = conn
	conn.Turn(where)
}

// begin has the newest connection receive the messages, after a claim. The caller holds the lock.
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
	case at.record.From != "": // the cursor came before the wait for it
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

// silence makes a connection quiet, before its later tasks, and returns a function that waits for its cursor:
// until the pending read of the log has ended, if there is one. A connection that took over earlier would
// skip the events that this one had yet to send. The caller holds the lock.
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
// the record that this one has claimed; empty when it does not arrive in time.
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
// is coming. A record that another edge has written for this one meanwhile has another revision. A
// failed release is tried again with the next sign of life.
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
	if at == nil { // a failed update may have been written
		a.work.Go(func() { a.release(key, where) })
		return
	}
	if err != nil || now < at.revision {
		return // another edge was faster, or has claimed it since; or the update is written and will be shown
	}
	at.record, at.revision, at.written = r, now, time.Now()
	if at.holder == nil {
		a.turn(at, at.newest(), where)
	}
}

// takeLeft takes over a record that is released or missing, or still that of the edge that is down.
func (a *attachments) takeLeft(key string, known attachRecord) {
	r, revision, err := a.records.read(a.base, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound): // it was lost, or has expired
	case err != nil || !r.Released && (known.Released || r.Edge != known.Edge):
		return
	case !r.Released:
		r.From = "" // the cursor of an earlier connection
	}
	a.takeOver(key, revision, r.From)
}

// sendCursor sends the cursor of the connection here to the edge that has claimed its stream, in the
// record.
func (a *attachments) sendCursor(key string, cursor func() string, to string, revision uint64) {
	where := cursor()
	_, _ = a.records.update(a.base, key, attachRecord{Edge: to, From: where}, revision) // the other edge does not wait for long
}

// show takes the current content of a record.
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

// shown is a record as the bucket has shown it.
type shown struct {
	record   attachRecord
	revision uint64
}

// apply has the connections to a stream follow its record. The caller holds the lock.
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
			at.incoming <- r.From // there is room for one cursor, and only one comes
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

// dropRevisions drops all revisions: the bucket may have other records when it is followed again.
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

// tend takes over from edges that are down, renews records, writes records again that NATS has
// lost (no revision means that there must be none), and tries failed take-overs, claims and releases
// again.
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
	case at == nil: // the last connection has ended, without knowledge of this record, which may be written all the same
		a.work.Go(func() { a.release(key, "") })
	case err == nil && at.revision == revision:
		at.revision, at.written = now, time.Now()
	}
}

// open opens the records before the first client connects, if NATS is available.
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

// tick does the work between two signs of life. While NATS was down, or the process was paused
// (SIGSTOP, a frozen container), this edge heard no other one, so none counts as silent.
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
