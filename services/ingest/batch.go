package ingest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"rejoin/services/ingest/problem"
	"rejoin/services/ingest/reply"
	"rejoin/services/ingest/request"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/quota"
	"rejoin/shared/web"
)

const (
	// batchAhead is how many messages of one request may wait for their
	// acknowledgement, and batchAheadBytes how many bytes; one may always.
	batchAhead      = 1024
	batchAheadBytes = 4 << 20
)

// result is the outcome of a message of a batch.
type result struct {
	index int
	stored
	problem *web.Problem // nil when it is stored
}

// batch stores the messages of one request in their order, as a series of the log.
// Acknowledgements are pipelined:
//
//	source ──▶ read: check, begin ──▶ pending ──▶ await: wait, report, in order
//
// At the first trouble that is not the message's own nothing more is begun: later
// messages would only overtake it.
type batch struct {
	service  *Service
	ctx      context.Context //nolint:containedctx // of the request's span; it does not end
	template message         // session, stream, and the other fields that every message has
	from     request.Source
	report   func(result)
	stopping <-chan struct{} // closed when the server stops
	over     <-chan struct{} // closed when the rest is not wanted; may be nil
	memory   *quota.Pool     // that the elements of from hold
	client   string          // the one that memory is taken for
	slow     slowness
	paused   time.Duration // for the rate so far: for this message, or for all

	series   *eventlog.Series
	life     string // of the session, at the first message
	refusal  sync.Once
	whyEnded error // why JetStream refused a message; set by refusal

	pending chan *pendingMessage // its room is taken by each batch, as little as it may be
	ahead   *quota.Pool          // bytes under way
	trouble chan struct{}        // closed when nothing more is to be begun
}

// slowness is how a batch waits while its publisher or session is over its rate.
type slowness uint8

const (
	// Requests on NATS never wait for a rate: one goroutine begins them, and all would wait.
	slowNever slowness = iota // it stops instead
	// An array waits for ten seconds in all: it is held in memory, and a disconnected client is
	// not noticed. NDJSON waits in its client.
	slowOnce // for longestPause in all
	slowEach // for longestPause with each message
)

// ahead is how much of batchAheadBytes a message of so many bytes takes: one that is larger takes all.
func ahead(size int) int64 { return min(int64(size), batchAheadBytes) }

// pendingMessage is a message that was begun, or could not be.
type pendingMessage struct {
	index  int
	size   int
	held   int64
	under  *inFlight
	failed error
}

// stop says where a batch stopped: the messages from index on were not tried.
type stop struct {
	index   int
	problem *web.Problem
	fenced  bool // JetStream refused it, and all that follow, because of their fence
	eof     bool // there are no more messages
}

// run returns where the batch stopped, or nil when it is complete. It reports the
// results of all messages before in order, from a goroutine of its own.
func (b *batch) run() *stop {
	b.pending = make(chan *pendingMessage, batchAhead)
	b.trouble = make(chan struct{})
	b.ahead = quota.NewPool(batchAheadBytes)
	b.series = b.service.backend.Log.Series()
	b.template.batch = b
	settled := make(chan struct{})
	var first *stop
	go func() {
		defer close(settled)
		first = b.await()
	}()
	end := b.read()
	close(b.pending)
	<-settled
	switch {
	case first != nil && first.fenced:
		return first
	case first != nil && end.problem == nil: // also when read has reached the end
		end.problem = first.problem
	case end.eof:
		return nil
	}
	return end
}

// read begins one message after the other, and returns where it stopped: without a problem
// at the end, and at trouble with a message that was begun.
func (b *batch) read() *stop {
	refused := 0
	for index := 0; ; index++ {
		if end := b.ended(index); end != nil {
			return end
		}
		if refused > maxErrors {
			return &stop{index: index, problem: web.New(web.CodeInvalidBody, "More than "+strconv.Itoa(maxErrors)+" of the messages before are refused.")}
		}
		e, err := b.from.Next()
		if errors.Is(err, io.EOF) {
			return &stop{index: index, eof: true}
		}
		m := b.template
		m.data = e.Data
		if _, ok := errors.AsType[*request.LineError](err); ok {
			b.service.metrics.publishedAs(stored{}, err)
			b.pending <- &pendingMessage{index: index, failed: err}
			refused++
			continue
		}
		if err != nil {
			return &stop{index: index, problem: problem.Of(err)}
		}
		if e.Type != "" {
			m.eventType = e.Type
		}
		m.keyIndex = uint64(index) //nolint:gosec // counts up from 0
		if e.Key != "" {
			m.key, m.keyIndex = e.Key, 0
		}
		under, err := b.next(m)
		if err != nil {
			b.memory.Give(b.client, e.Held)
			if errors.Is(err, errHalted) {
				return cmp.Or(b.ended(index), &stop{index: index}) // await may not have reported the trouble yet
			}
			if p := problem.Of(err); stops(p) {
				return &stop{index: index, problem: p}
			}
			b.pending <- &pendingMessage{index: index, failed: err}
			refused++
			continue
		}
		b.pending <- &pendingMessage{index: index, size: len(m.data), held: e.Held, under: under}
	}
}

// keep returns problem.ErrOpenedAgain when the session has another life than at the batch's first
// message: later messages would overtake those that were refused for the first life.
func (b *batch) keep(life string) error {
	b.life = cmp.Or(b.life, life)
	if life != b.life {
		return problem.ErrOpenedAgain
	}
	return nil
}

// once calls why, which asks why a message was refused because of its fence, once for all such messages.
func (b *batch) once(why func() error) error {
	b.refusal.Do(func() { b.whyEnded = why() })
	return b.whyEnded
}

// next begins a message once there is room for it. The error is errHalted when nothing more
// is to be begun.
func (b *batch) next(m message) (under *inFlight, err error) {
	_ = b.ahead.Wait(context.Background(), "", ahead(len(m.data))) // all that is under way ends
	defer func() {
		if err != nil {
			b.ahead.Give("", ahead(len(m.data)))
		}
	}()
	if b.ended(0) != nil {
		return nil, errHalted
	}
	return b.send(m)
}

// ended returns the end of a batch that does not continue, with index as the first message
// that is not tried, or nil.
func (b *batch) ended(index int) *stop {
	select {
	case <-b.trouble:
		return &stop{index: index}
	case <-b.stopping:
		return &stop{index: index, problem: problem.Of(problem.ErrStopping)}
	case <-b.over:
		return &stop{index: index, problem: web.New(web.CodeUnavailable, "The results are not read.")}
	default:
		return nil
	}
}

// await waits for the messages that were begun, and returns the first trouble. The messages after one
// that was refused because of its fence are refused too, and not reported.
func (b *batch) await() (first *stop) {
	for p := range b.pending {
		r := result{index: p.index}
		err := p.failed
		if p.under != nil {
			r.stored, err = p.under.awaitCounted()
		}
		if err != nil {
			r.problem = problem.Of(err)
			if first == nil && stops(r.problem) {
				first = &stop{index: r.index, problem: r.problem, fenced: errors.Is(err, problem.ErrFenced)}
				close(b.trouble)
			}
		}
		b.memory.Give(b.client, p.held)
		b.ahead.Give("", ahead(p.size)) // read continues, and has to see the trouble
		if first == nil || !first.fenced {
			b.report(r)
		}
	}
	return first
}

// stops reports whether a problem is one of the log, the session, the token or the
// publisher, and not of the message alone.
func stops(p *web.Problem) bool {
	switch p.Code {
	case web.CodeSessionClosed, web.CodeStreamClosed, web.CodeTooManyStreams, web.CodeTooManySessions, web.CodeNotFound, web.CodeUnauthorized, web.CodeRateLimited:
		return true
	default:
		return p.Status >= 500
	}
}

// maxErrors is how many messages a summary names that were not stored, and how many a batch may
// have that are refused before they are sent to the log: after those it stops.
const maxErrors = 1000

// longestPause is how long a batch is slowed down at a time: for one of its messages when
// it is a text in NDJSON, which waits in its client, else for all of them together.
const longestPause = 10 * time.Second

// errHalted is returned when a batch ends while it waits.
var errHalted = errors.New("the batch ends")

// send sends a message of the batch. The error is a [*problem.RateError] when it would have to wait for too
// long, or errHalted.
func (b *batch) send(m message) (under *inFlight, err error) {
	if b.slow == slowEach {
		b.paused = 0
	}
	err = b.pace(func() error { return b.service.takeRate(m) })
	if err == nil {
		err = b.pace(func() (err error) {
			under, err = b.service.send(b.ctx, &m, b.service.cfg.AckTimeout)
			return err
		})
	}
	if errors.Is(err, eventlog.ErrSeriesFailed) {
		return nil, errHalted
	}
	if err != nil && !errors.Is(err, errHalted) {
		b.service.count(b.ctx, m, stored{}, err)
	}
	return under, err
}

// pace calls try until try is not refused for the rate any more.
//
// A batch over its rate returns its slot among the publishes in flight and tries again, so
// that its record of the session is never old when the publish begins.
func (b *batch) pace(try func() error) error {
	for {
		err := try()
		limited, ok := errors.AsType[*problem.RateError](err)
		if !ok || b.slow == slowNever || b.paused+limited.Wait > longestPause {
			return err
		}
		b.paused += limited.Wait
		if !b.pause(limited.Wait) {
			return errHalted
		}
	}
}

// pause reports whether the batch continues after d.
func (b *batch) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-b.trouble:
	case <-b.stopping:
	case <-b.over:
	}
	return false
}

// summary is the answer to the messages of one request.
type summary struct {
	// Accepted counts the messages that are stored, Duplicates those of them that were stored
	// before. Refused are not stored; Unknown have an unknown outcome.
	Accepted   int `json:"accepted"`
	Duplicates int `json:"duplicates"`
	Refused    int `json:"refused"`
	Unknown    int `json:"unknown"`
	// LastID is the event ID of the last one that is stored.
	LastID *string `json:"lastId"`
	// Errors names the first that are not stored, or whose outcome is unknown.
	Errors []refusal `json:"errors"`
	// Stopped is the first message that was not tried, with the reason.
	Stopped *refusal `json:"stopped"`
}

// refusal is the reason why a message is not stored.
type refusal struct {
	Index  int      `json:"index"`
	Code   web.Code `json:"code"`
	Detail string   `json:"detail,omitempty"`
}

// acceptance is the result of a message that is stored.
type acceptance struct {
	Index int `json:"index"`
	stored
}

func newSummary() *summary { return &summary{Errors: []refusal{}} }

// add counts the result of the next message.
func (s *summary) add(r result) {
	if r.problem == nil {
		s.Accepted++
		if r.Duplicate {
			s.Duplicates++
		}
		s.LastID = &r.ID
		return
	}
	if r.problem.Code == web.CodePublishUnknown {
		s.Unknown++
	} else {
		s.Refused++
	}
	if len(s.Errors) < maxErrors {
		s.Errors = append(s.Errors, r.refusal())
	}
}

func (s *summary) end(at *stop) {
	if at != nil {
		s.Stopped = &refusal{at.index, at.problem.Code, at.problem.Detail}
	}
}

func (r result) refusal() refusal { return refusal{r.index, r.problem.Code, r.problem.Detail} }

// line returns the result as a line of NDJSON.
func (r result) line() []byte {
	if r.problem != nil {
		return ndjson(r.refusal())
	}
	return ndjson(acceptance{r.index, r.stored})
}

func ndjson(v any) []byte { return append(event.MustJSON(v), '\n') }

// store stores a batch and returns its summary. The error is the reason why no message was
// tried.
func (s *Service) store(b *batch) (*summary, error) {
	if err := b.template.checkNames(); err != nil {
		return nil, err
	}
	sum := newSummary()
	b.report = sum.add
	end := b.run()
	if end != nil && sum.Accepted+sum.Refused+sum.Unknown == 0 { // nothing was tried
		return nil, end.problem
	}
	sum.end(end)
	return sum, nil
}

// answerEach runs a batch and writes the result of each message as a line, and the
// summary as the last one.
func (b *batch) answerEach(conn net.Conn, w *bufio.Writer) {
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	b.over = over
	out := reply.New(conn, end, b.memory, b.client)
	defer out.Drop()
	sum := newSummary()
	b.report = func(r result) {
		sum.add(r)
		out.Add(r.line())
	}
	go func() {
		defer out.Close()
		sum.end(b.run())
		out.Add(ndjson(sum))
	}()
	var lines []byte
	for gone := false; ; {
		if lines = out.Take(lines); len(lines) == 0 {
			return
		}
		if !gone && out.Write(w, lines) != nil {
			gone = true // the client has disconnected
			end()
		}
	}
}
