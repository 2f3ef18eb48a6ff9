package load

import (
	"bytes"
	"fmt"
	"time"
)

// blockKind is the kind of a block of an event stream.
type blockKind uint8

const (
	blockOther   blockKind = iota
	blockFirst             // the server's first one on a connection
	blockMessage           // a message of the bench
)

// block checks a block, up to and with its last line end. A message has an id, then
// data with the members "n" and "t"; sent is the latter. Where ids are sequences
// (sequenced), they end in "_<sequence>".
func (c *loadConn) block(block []byte, sequenced bool) (kind blockKind, sent int64, err error) {
	if !bytes.HasPrefix(block, []byte("id: ")) {
		kind, err = c.other(block)
		return kind, 0, err
	}
	id := block[4:bytes.IndexByte(block, '\n')]
	if sequenced {
		at := bytes.LastIndexByte(id, '_')
		if at < 0 {
			return 0, 0, fmt.Errorf("the id %q has no sequence", id)
		}
		sequence, err := decimal(id[at+1:])
		if err != nil {
			return 0, 0, err
		}
		if uint64(sequence) <= c.sequence { //nolint:gosec // positive
			return 0, 0, fmt.Errorf("sequence %d came after %d", sequence, c.sequence)
		}
		c.sequence = uint64(sequence) //nolint:gosec // positive
	}
	n, err := member(block, `"n":`)
	if err != nil {
		return 0, 0, err
	}
	if n != int64(c.next) {
		return 0, 0, fmt.Errorf("got message %d, want %d", n, c.next)
	}
	sent, err = SentAt(block)
	if err != nil {
		return 0, 0, err
	}
	c.next++
	c.id = append(c.id[:0], id...)
	return blockMessage, sent, nil
}

// other looks at a block that is no message.
func (c *loadConn) other(block []byte) (blockKind, error) {
	if _, rest, ok := bytes.Cut(block, []byte("retry: ")); ok {
		ms, err := decimal(rest[:bytes.IndexByte(rest, '\n')])
		if err != nil {
			return 0, err
		}
		c.retry = time.Duration(ms) * time.Millisecond
	}
	switch {
	case bytes.Contains(block, []byte("event: connect\n")), bytes.HasPrefix(block, []byte(": open")), bytes.HasPrefix(block, []byte(": hi")):
		return blockFirst, nil
	case bytes.Contains(block, []byte("event: gap\n")):
		return 0, fmt.Errorf("gap: %s", block)
	}
	return blockOther, nil
}

// loadConn is one connection.
type loadConn struct {
	fd       int
	index    int
	sent     bool // the request
	inBody   bool
	rest     []byte // an unfinished block
	next     int    // the number of the next message
	sequence uint64
	id       []byte        // of the newest message
	retry    time.Duration // the server's last one
	backAt   time.Time     // when the connection is opened again
}
