package waittest

import (
	"bytes"
	"sync"
)

// Buffer takes the output of a program: a test reads it while it is written. Its zero value is empty.
type Buffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

// Write appends to the buffer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

// String returns all that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}
