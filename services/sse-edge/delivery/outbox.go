package delivery

import (
	"slices"
	"strconv"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
)

// outbox holds the next bytes to write to a client: blocks of its own, the frames of
// a step, and the block that ends the connection. Frames of the window are not copied;
// neighbours become one buffer.
type outbox struct {
	buffers [][]byte
	chunked bool  // each block is a chunk of HTTP/1.1 (RFC 9112, 7.1)
	size    int   // of all buffers
	ends    []int // the ends, in bytes, of the leading blocks, of each frame, and of the last block
	made    []byte
	object  []byte // room for an event as an object of JSON
}

// only makes a block of a connection's own, and of no step, the content; last says that
// nothing follows it.
func (o *outbox) only(c *Connection, block []byte, last bool) {
	o.begin(c)
	o.block(block)
	if last {
		o.end()
	}
	o.ends = append(o.ends, o.size)
}

// begin makes the connection's Head the content.
func (o *outbox) begin(c *Connection) {
	o.clear()
	o.chunked = c.Chunked
	o.add(c.Head)
	c.Head = nil
}

func (o *outbox) clear() {
	clear(o.buffers)
	o.buffers, o.ends, o.size, o.made = o.buffers[:0], o.ends[:0], 0, o.made[:0]
}

func (o *outbox) add(b []byte) {
	if len(b) > 0 {
		o.buffers = append(o.buffers, b)
		o.size += len(b)
	}
}

var (
	lineEnd   = []byte("\r\n")
	lastChunk = []byte("0\r\n\r\n")
)

// block adds a block, as a chunk if the body has chunks. A client that receives a part of
// a chunk detects that, and does not take a part of an event for the whole.
func (o *outbox) block(b []byte) {
	if len(b) == 0 {
		return
	}
	if !o.chunked {
		o.add(b)
		return
	}
	from := len(o.made)
	o.made = append(strconv.AppendInt(o.made, int64(len(b)), 16), lineEnd...)
	o.add(o.made[from:])
	o.add(b)
	o.add(lineEnd)
}

// end ends the body in order.
func (o *outbox) end() {
	if o.chunked {
		o.add(lastChunk)
	}
}

// fill makes a step of a connection the content.
func (o *outbox) fill(c *Connection, s cursor.Step) {
	o.begin(c)
	if len(s.Gaps)+len(s.Changes) > 0 {
		o.block(c.Format.Gaps(s))
	}
	if len(s.Items) > 0 {
		o.ends = append(o.ends, o.size)
	} else { // the step is not cut: its last block may report a gap, which no other read finds again
		o.ends = append(o.ends, 0)
	}
	if c.Format.Rewrites() {
		for i := range s.Items {
			o.rewrite(c, &s.Items[i])
		}
	} else {
		o.frames(s.Items)
	}
	if s.Ended {
		o.block(c.Format.Closing(s))
		o.end()
	}
	o.ends = append(o.ends, o.size)
}

// frames adds frames as they lie in the window.
func (o *outbox) frames(items []window.Item) {
	var segment, end uint64
	joinable := false
	for i := range items {
		it := &items[i]
		if !o.chunked && joinable && it.Segment == segment && it.Offset == end {
			last := &o.buffers[len(o.buffers)-1]
			*last = (*last)[:len(*last)+len(it.Frame)]
			o.size += len(it.Frame)
		} else {
			o.block(it.Frame)
		}
		o.ends = append(o.ends, o.size)
		joinable, segment, end = it.Segment != window.OfLog, it.Segment, it.Offset+uint64(len(it.Frame))
	}
}

// rewrite adds an event as the connection's format shows it.
func (o *outbox) rewrite(c *Connection, it *window.Item) {
	from := len(o.made)
	o.made, o.object = c.Format.Event(o.made, o.object, it)
	o.block(o.made[from:])
	o.ends = append(o.ends, o.size)
}

// smallRest is the most bytes of an unfinished frame that are copied, as part of a connection's own memory. A larger
// rest is held in place: in the window, with its segment, or in memory that counts.
const smallRest = 4 << 10

// cut returns how many bytes have to follow the first n so that a block is complete, at
// least one, and how much a client then has: 0 for the leading blocks, i for the
// first i frames, and one more than the number of frames for everything.
//
// The cursor moves back to the end of the frame that was cut: a slow client holds only the rest of
// that frame.
func (o *outbox) cut(n int) (length, told int) {
	told, _ = slices.BinarySearch(o.ends, n+1)
	return o.ends[told] - n, told
}

// rest returns the bytes that follow the first n. Blocks that were made in the outbox are copied.
func (o *outbox) rest(n, length int, made bool) (rest [][]byte) {
	for _, b := range o.buffers {
		if n >= len(b) {
			n -= len(b)
			continue
		}
		b = b[n:min(len(b), n+length)]
		if n = 0; made || len(b) <= smallRest {
			b = slices.Clone(b)
		}
		rest = append(rest, b)
		if length -= len(b); length == 0 {
			break
		}
	}
	return rest
}
