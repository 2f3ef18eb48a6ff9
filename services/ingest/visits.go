package ingest

import "sync"

// visits are the requests that are being answered. Safe for concurrent use.
type visits struct {
	mu     sync.Mutex
	closed bool
	over   chan struct{} // closed with it
	inside sync.WaitGroup
}

// enter reports whether a request may still be answered; then the caller must call leave.
func (v *visits) enter() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed {
		v.inside.Add(1)
	}
	return !v.closed
}

func (v *visits) leave() { v.inside.Done() }

// close refuses all later requests, and waits for those in progress.
func (v *visits) close() {
	v.mu.Lock()
	v.closed = true
	close(v.over)
	v.mu.Unlock()
	v.inside.Wait()
}

// lanes run the requests of one session one after the other, in the order of do, and those of
// different sessions at the same time. The zero value is ready. It is safe for concurrent use.
type lanes struct {
	mu sync.Mutex
	// waiting has the functions that are not called yet, by session; a session has an entry while
	// its goroutine runs.
	waiting map[string][]func()
}

// do has run called as soon as all functions before it have returned. It does not wait for that.
func (l *lanes) do(session string, run func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if queue, busy := l.waiting[session]; busy {
		l.waiting[session] = append(queue, run)
		return
	}
	if l.waiting == nil {
		l.waiting = map[string][]func(){}
	}
	l.waiting[session] = nil
	go func() {
		for run != nil {
			run()
			run = l.next(session)
		}
	}()
}

// next takes the session's next function, or ends the lane and returns nil.
func (l *lanes) next(session string) (run func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	queue := l.waiting[session]
	if len(queue) == 0 {
		delete(l.waiting, session)
		return nil
	}
	run, queue[0] = queue[0], nil
	l.waiting[session] = queue[1:]
	return run
}
