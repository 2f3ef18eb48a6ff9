package ingest

import (
	"bufio"
	"net"
	"slices"
	"sync"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/quota"
	"rejoin/shared/web"
)

// summary is the answer to the messages of one request.
type summary struct {
	// Accepted counts the messages that are stored, Duplicates those of them that were
	// before. Refused are not stored; Unknown have an unknown outcome.
	Accepted   int `json:"accepted"`
	Duplicates int `json:"duplicates"`
	Refused    int `json:"refused"`
	Unknown    int `json:"unknown"`
	// LastID is the event ID of the last one that is stored.
	LastID *string `json:"lastId"`
	// Errors names the first that are not stored, or whose outcome is unknown.
	Errors []refusal `json:"errors"`
	// Stopped says which message was the first that was not tried, and why.
	Stopped *refusal `json:"stopped"`
}

// refusal says why a message is not stored.
type refusal struct {
	Index  int      `json:"index"`
	Code   web.Code `json:"code"`
	Detail string   `json:"detail,omitempty"`
}

// acceptance says that a message is stored.
type acceptance struct {
	Index int `json:"index"`
	stored
}

func newSummary() *summary { return &summary{Errors: []refusal{}} }

// add takes in the result of the next message.
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

// nothing returns the problem of a request of which nothing was tried, or nil.
func (s *summary) nothing(at *stop) *web.Problem {
	if at == nil || s.Accepted+s.Refused+s.Unknown > 0 {
		return nil
	}
	return at.problem
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

// store stores a batch and returns its summary. The error is what kept all of it from
// being tried.
func (s *Service) store(b *batch) (*summary, error) {
	if err := b.template.checkNames(); err != nil {
		return nil, err
	}
	sum := newSummary()
	b.report = sum.add
	end := b.run()
	if nothing := sum.nothing(end); nothing != nil {
		return nil, nothing
	}
	sum.end(end)
	return sum, nil
}

// resultsTimeout is how long a client that has sent everything may go without reading.
const resultsTimeout = 30 * time.Second

// results are lines on their way to a client. Adding never waits for the client,
// so one that writes everything before it reads does not wait for itself, as long as there is
// memory for what it has not read.
//
// Results wait in memory while the client only writes: a client that writes everything before
// it reads would otherwise wait for itself. --memory-budget bounds them.
type results struct {
	conn   net.Conn
	over   func() // ends the batch
	memory *quota.Pool
	client string

	mu       sync.Mutex
	more     sync.Cond
	lines    []byte
	held     int64 // bytes of memory that are taken for what is not written
	closed   bool
	extended time.Time
}

func newResults(conn net.Conn, over func(), memory *quota.Pool, client string) *results {
	r := &results{conn: conn, over: over, memory: memory, client: client}
	r.more.L = &r.mu
	return r
}

// add adds a line. As long as lines come the client need not read.
func (r *results) add(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line...)
	if r.memory.Take(r.client, int64(len(line))) {
		r.held += int64(len(line))
	} else {
		r.over() // what was begun has its results all the same
	}
	r.extend()
	r.more.Signal()
}

// extend moves the deadline of what is written. The caller holds the lock.
func (r *results) extend() {
	if now := time.Now(); now.Sub(r.extended) > time.Second {
		r.extended = now
		_ = r.conn.SetWriteDeadline(now.Add(resultsTimeout)) // fails on a closed connection, as Write does
	}
}

// write writes lines in pieces; each that is gone moves the deadline. Their memory is free once all
// of them are.
func (r *results) write(w *bufio.Writer, lines []byte) error {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.letGo(int64(len(lines)))
	}()
	for piece := range slices.Chunk(lines, 64<<10) {
		r.mu.Lock()
		r.extend()
		r.mu.Unlock()
		if _, err := w.Write(piece); err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// letGo gives back memory. The caller holds the lock.
func (r *results) letGo(n int64) {
	n = min(n, r.held)
	r.memory.Give(r.client, n)
	r.held -= n
}

// drop gives back all memory, when nothing is added any more.
func (r *results) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.letGo(r.held)
}

func (r *results) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.more.Signal()
}

// maxSpare is the largest buffer that is used again: it counts for nothing while it is empty.
const maxSpare = 256 << 10

// take returns what is there, and waits for some. It returns nothing at the end. spare is used for
// what comes next.
func (r *results) take(spare []byte) []byte {
	if cap(spare) > maxSpare {
		spare = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.lines) == 0 && !r.closed {
		r.more.Wait()
	}
	lines := r.lines
	r.lines = spare[:0]
	return lines
}

// answerEach runs a batch and writes the result of each message as a line, and the
// summary as the last one.
func (b *batch) answerEach(conn net.Conn, w *bufio.Writer) {
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	b.over = over
	out := newResults(conn, end, b.memory, b.client)
	defer out.drop()
	sum := newSummary()
	b.report = func(r result) {
		sum.add(r)
		out.add(r.line())
	}
	go func() {
		defer out.close()
		sum.end(b.run())
		out.add(ndjson(sum))
	}()
	var lines []byte
	for gone := false; ; {
		if lines = out.take(lines); len(lines) == 0 {
			return
		}
		if !gone && out.write(w, lines) != nil {
			gone = true // the client has gone
			end()
		}
	}
}
