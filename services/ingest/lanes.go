package ingest

import "sync"

// lanes run what is asked of one session one after the other, in the order of do, and that of
// different sessions at the same time. The zero value is ready. It is safe for concurrent use.
type lanes struct {
	mu sync.Mutex
	// waiting is what follows what runs, by session; a session has an entry while its
	// goroutine runs.
	waiting map[string][]func()
}

// do has run called as soon as everything before it has returned. It does not wait for that.
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

// next takes what follows, or ends the lane and returns nil.
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
