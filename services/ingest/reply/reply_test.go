package reply

import (
	"bufio"
	"bytes"
	"net"
	"testing"

	"rejoin/shared/quota"
)

// H3: unread results end their batch when the memory has no room for them.
func TestLines_HeldWithinTheMemory(t *testing.T) {
	memory := quota.NewPool(1000)
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	over := 0
	r := New(here, func() { over++ }, memory, "")
	line := bytes.Repeat([]byte("x"), 300)
	for range 3 {
		r.Add(line)
	}
	if over != 0 || memory.Used() != 900 {
		t.Errorf("ended %d times with %d bytes held", over, memory.Used())
	}
	r.Add(line)
	if over != 1 || memory.Used() != 900 {
		t.Errorf("ended %d times with %d bytes held", over, memory.Used())
	}
	if lines := r.Take(nil); len(lines) != 1200 { // begun messages are reported
		t.Errorf("%d bytes are told", len(lines))
	}
	if r.Drop(); memory.Used() != 0 {
		t.Errorf("%d bytes are held at the end", memory.Used())
	}
}

// Lines that wait for a client to read them count until they are written, and no buffer outlives them.
func TestLines_LargeBuffers(t *testing.T) {
	client, server := net.Pipe()
	defer func() { _ = client.Close() }()
	defer func() { _ = server.Close() }()
	pool := quota.NewPool(64 << 20)
	r := New(server, func() {}, pool, "a")
	for range 8 {
		r.Add(make([]byte, 1<<20))
	}
	lines := r.Take(nil)
	err := r.Write(bufio.NewWriter(writerFunc(func(b []byte) (int, error) {
		if used := pool.Used(); used < 8<<20 {
			t.Errorf("%d bytes of it count while it is written", used)
		}
		return len(b), nil
	})), lines)
	if err != nil || pool.Used() != 0 {
		t.Errorf("%v, %d bytes are counted for nothing", err, pool.Used())
	}
	r.Add([]byte("line\n"))
	r.Take(lines)
	if n := cap(r.lines); n > maxSpare {
		t.Errorf("a buffer of %d bytes is kept", n)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
