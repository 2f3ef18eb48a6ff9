package main

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// blockKind says what a block of an event stream is.
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
	sent, err = member(block, `"t":`)
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

// memberWithin is how far into a block a member is looked for.
const memberWithin = 220

// member returns the number behind a key, which stands early in the block.
func member(block []byte, key string) (int64, error) {
	head := block[:min(len(block), memberWithin)]
	i := bytes.Index(head, []byte(key))
	if i < 0 {
		return 0, fmt.Errorf("no %s in %.100q", key, block)
	}
	rest := head[i+len(key):]
	end := bytes.IndexByte(rest, ',')
	if end < 0 {
		return 0, fmt.Errorf("no number behind %s in %.100q", key, block)
	}
	return decimal(rest[:end])
}

var errNoNumber = errors.New("no number")

// decimal reads a number of at most 19 digits that is not negative.
func decimal(b []byte) (int64, error) {
	var v int64
	if len(b) == 0 || len(b) > 19 {
		return 0, fmt.Errorf("%w: %q", errNoNumber, b)
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%w: %q", errNoNumber, b)
		}
		v = v*10 + int64(c-'0')
	}
	return v, nil
}

// stamped returns message n as it is sent now, padded to size bytes.
func stamped(n, size int) []byte {
	b := fmt.Appendf(make([]byte, 0, size), `{"jsonrpc":"2.0","method":"notifications/message","params":{"n":%d,"t":%d,"pad":"`, n, time.Now().UnixNano())
	for len(b) < size-3 {
		b = append(b, 'x')
	}
	return append(b, `"}}`...)
}
