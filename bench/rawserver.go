package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
)

// The raw servers are what a broadcaster cannot be faster than: they accept, read
// a request, and write prepared frames to sockets, and do nothing else. They run
// in a process of their own, so that their CPU can be told from the clients'.
//
//	raw        one write for every event and client
//	raw-batch  for every client, whatever is waiting in one write
//
// The first line that they print is their address. A connection whose first byte
// is 0 is the publisher's: it sends frames, each behind its length in 4 bytes; when
// it goes, so does the process. serveRaw returns when it cannot accept any more.
func serveRaw(batch bool) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	b := &broadcaster{batch: batch}
	b.grown.L = &b.mu
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go b.serve(c)
	}
}

type broadcaster struct {
	batch bool
	mu    sync.Mutex
	conns []net.Conn
	log   []byte
	grown sync.Cond
}

const rawHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n: open\n\n"

func (b *broadcaster) serve(c net.Conn) {
	r := bufio.NewReaderSize(c, 512)
	if first, err := r.Peek(1); err == nil && first[0] == 0 {
		_, _ = r.Discard(1)
		b.publish(bufio.NewReaderSize(r, 1<<20))
		os.Exit(0)
	}
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		if len(bytes.TrimSpace(line)) == 0 {
			break
		}
	}
	b.mu.Lock()
	at := len(b.log)
	_, _ = c.Write([]byte(rawHead))
	b.conns = append(b.conns, c)
	b.mu.Unlock()
	if b.batch {
		b.follow(c, at)
	}
}

func (b *broadcaster) publish(r io.Reader) {
	var size [4]byte
	frame := make([]byte, 1<<20)
	for {
		if _, err := io.ReadFull(r, size[:]); err != nil {
			return
		}
		frame := frame[:binary.BigEndian.Uint32(size[:])]
		if _, err := io.ReadFull(r, frame); err != nil {
			return
		}
		b.mu.Lock()
		if b.batch {
			b.log = append(b.log, frame...)
			b.grown.Broadcast()
		} else {
			for _, c := range b.conns {
				_, _ = c.Write(frame)
			}
		}
		b.mu.Unlock()
	}
}

func (b *broadcaster) follow(c net.Conn, at int) {
	for {
		b.mu.Lock()
		for at == len(b.log) {
			b.grown.Wait()
		}
		waiting := b.log[at:]
		b.mu.Unlock()
		if _, err := c.Write(waiting); err != nil {
			return
		}
		at += len(waiting)
	}
}
