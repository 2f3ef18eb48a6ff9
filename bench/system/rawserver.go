package system

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"

	"rejoin/bench/load"
	"rejoin/shared/sse"
)

// The raw servers are the upper limit of a broadcaster's speed: they accept, read a
// request, and write prepared frames to sockets, and do nothing else. They run in a
// process of their own, so that their CPU can be told from the clients'.
//
//	raw         one write for every event and client
//	raw-batch   for every client, all waiting events in one write
//	raw-replay  for every client that connects, everything in one write
//
// The first line that they print is their address. "GET /17" asks for stream 17. A
// connection whose first byte is 0 is the publisher's: it sends frames, each after its
// stream and its length in 4 bytes each; when it ends, so does the process. serveRaw
// returns when it cannot accept any more.
func serveRaw(kind string) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	b := &broadcaster{kind: kind, streams: map[int]*rawStream{}}
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go b.serve(c)
	}
}

// The kinds of raw servers.
const (
	RawEach   = "raw"
	rawBatch  = "raw-batch"
	RawReplay = "raw-replay"
)

type broadcaster struct {
	kind    string
	mu      sync.Mutex // guards everything below
	streams map[int]*rawStream
}

// rawStream is one stream; the broadcaster's lock guards it.
type rawStream struct {
	conns []net.Conn // of RawEach
	log   []byte     // of the others
	grown sync.Cond
}

const rawHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n: open\n\n"

// stream returns a stream, which is made when it is new.
func (b *broadcaster) stream(number int) *rawStream {
	s := b.streams[number]
	if s == nil {
		s = &rawStream{}
		s.grown.L = &b.mu
		b.streams[number] = s
	}
	return s
}

func (b *broadcaster) serve(c net.Conn) {
	r := bufio.NewReaderSize(c, 512)
	if first, err := r.Peek(1); err == nil && first[0] == 0 {
		_, _ = r.Discard(1)
		b.publish(bufio.NewReaderSize(r, 1<<20))
		os.Exit(0)
	}
	number, err := requested(r)
	if err != nil {
		_ = c.Close()
		return
	}
	b.mu.Lock()
	s := b.stream(number)
	at := len(s.log)
	switch b.kind {
	case RawEach:
		_, _ = c.Write([]byte(rawHead))
		s.conns = append(s.conns, c)
		b.mu.Unlock()
	case RawReplay:
		everything := s.log
		b.mu.Unlock()
		_, _ = (&net.Buffers{[]byte(rawHead), everything}).WriteTo(c)
	default:
		b.mu.Unlock()
		_, _ = c.Write([]byte(rawHead))
		b.follow(c, s, at)
	}
}

// requested reads a request and returns the number that its target is.
func requested(r *bufio.Reader) (number int, err error) {
	for n := 0; ; n++ {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			return number, nil
		}
		if n == 0 {
			fields := bytes.Fields(line)
			if len(fields) != 3 {
				return 0, fmt.Errorf("not a request: %q", line)
			}
			if number, err = strconv.Atoi(string(bytes.TrimPrefix(fields[1], []byte("/")))); err != nil {
				return 0, err
			}
		}
	}
}

func (b *broadcaster) publish(r io.Reader) {
	var head [8]byte
	frame := make([]byte, 1<<20)
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		number := int(binary.BigEndian.Uint32(head[:4]))
		frame := frame[:binary.BigEndian.Uint32(head[4:])]
		if _, err := io.ReadFull(r, frame); err != nil {
			return
		}
		b.mu.Lock()
		s := b.stream(number)
		if b.kind == RawEach {
			for _, c := range s.conns {
				_, _ = c.Write(frame)
			}
		} else {
			s.log = append(s.log, frame...)
			s.grown.Broadcast()
		}
		b.mu.Unlock()
	}
}

func (b *broadcaster) follow(c net.Conn, s *rawStream, at int) {
	for {
		b.mu.Lock()
		for at == len(s.log) {
			s.grown.Wait()
		}
		waiting := s.log[at:]
		b.mu.Unlock()
		if _, err := c.Write(waiting); err != nil {
			return
		}
		at += len(waiting)
	}
}

// rawServer is a raw server in a process of its own.
type rawServer struct {
	cmd      *exec.Cmd
	addr     string
	conn     net.Conn
	w        *bufio.Writer
	sequence int
}

// StartRaw starts a raw server of a kind.
func StartRaw(ctx context.Context, kind string) (Server, error) {
	cmd, addr, err := StartSelf(ctx, kind)
	if err != nil {
		return nil, errors.Join(errors.New("the raw server did not start"), err)
	}
	r := &rawServer{cmd: cmd, addr: addr}
	if r.conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", r.addr); err != nil {
		End(cmd)
		return nil, err
	}
	r.w = bufio.NewWriterSize(r.conn, 64<<10)
	return r, r.w.WriteByte(0)
}

func (r *rawServer) Target() load.Target {
	return load.Target{Addr: r.addr, Sequenced: true, Path: func(stream int) string { return "/" + strconv.Itoa(stream) }}
}

func (r *rawServer) Publish(_ context.Context, stream int, message []byte) error {
	r.sequence++
	frame := sse.AppendEvent(nil, "raw_0000000_"+strconv.Itoa(r.sequence), "", message)
	var head [8]byte
	binary.BigEndian.PutUint32(head[:4], uint32(stream))     //nolint:gosec // small
	binary.BigEndian.PutUint32(head[4:], uint32(len(frame))) //nolint:gosec // small
	_, err := r.w.Write(append(head[:], frame...))
	return err
}

func (r *rawServer) Push() error { return r.w.Flush() }

func (r *rawServer) Flush(context.Context) error { return r.w.Flush() }

func (r *rawServer) PIDs() []int { return []int{r.cmd.Process.Pid} }

func (r *rawServer) Close() {
	_ = r.conn.Close()
	End(r.cmd)
}
