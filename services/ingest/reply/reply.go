// Package reply writes the lines of an answer to a client that may not read them yet.
package reply

import (
	"bufio"
	"net"
	"slices"
	"sync"
	"time"

	"rejoin/shared/quota"
)

// writeTimeout is how long a client that has sent everything may read nothing.
const writeTimeout = 30 * time.Second

// Lines are lines on their way to a client. Adding never waits for the client,
// so one that writes everything before it reads does not wait for itself, as long as there is
// memory for the unread lines, which --memory-budget bounds.
type Lines struct {
	conn   net.Conn
	over   func() // ends the batch
	memory *quota.Pool
	client string

	mu       sync.Mutex
	more     sync.Cond
	lines    []byte
	held     int64 // bytes of memory that are taken for unwritten lines
	closed   bool
	extended time.Time
}

// New returns lines for a client: over is called when there is no memory for more of them.
func New(conn net.Conn, over func(), memory *quota.Pool, client string) *Lines {
	r := &Lines{conn: conn, over: over, memory: memory, client: client}
	r.more.L = &r.mu
	return r
}

// Add adds a line. As long as lines are added the client need not read.
func (r *Lines) Add(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line...)
	if r.memory.Take(r.client, int64(len(line))) {
		r.held += int64(len(line))
	} else {
		r.over() // the messages that were begun have their results all the same
	}
	r.extend()
	r.more.Signal()
}

// extend moves the deadline of writes. The caller holds the lock.
func (r *Lines) extend() {
	if now := time.Now(); now.Sub(r.extended) > time.Second {
		r.extended = now
		_ = r.conn.SetWriteDeadline(now.Add(writeTimeout)) // fails on a closed connection, as Write does
	}
}

// Write writes lines in pieces; each moves the deadline. Their memory is free once all
// of them are written.
func (r *Lines) Write(w *bufio.Writer, lines []byte) error {
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
func (r *Lines) letGo(n int64) {
	n = min(n, r.held)
	r.memory.Give(r.client, n)
	r.held -= n
}

// Drop gives back all memory. The caller adds no more lines.
func (r *Lines) Drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.letGo(r.held)
}

// Close ends the lines: Take returns the remaining ones, and then nothing.
func (r *Lines) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.more.Signal()
}

// maxSpare is the largest buffer that is used again: it counts for nothing while it is empty.
const maxSpare = 256 << 10

// Take waits for lines and returns all of them. It returns nothing at the end. spare is the buffer of
// the next lines.
func (r *Lines) Take(spare []byte) []byte {
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
