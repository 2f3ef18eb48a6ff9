package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"rejoin/shared/clocks"
)

// entry is a message that has no outcome yet.
type entry struct {
	line   []byte
	result *Result
	// doubt is when the first attempt began whose outcome is unknown, or zero. It
	// stays after any outcome of later attempts: that one may still have stored it. The log forgets
	// keys also while this machine is suspended, so it counts by two clocks.
	doubt clocks.Instant
	err   error // of that attempt
}

// isDoubtful reports whether an attempt may have stored the message.
func (e *entry) isDoubtful() bool { return e.doubt != clocks.Instant{} }

// lane is the queue of a stream. It exists while it is not empty, and has one
// goroutine, which alone takes entries out: so one request at a time is under way
// for a stream, and its order is kept.
type lane struct {
	publisher *Publisher
	address   address
	wait      backoff
	most      int // messages of the next request, after a proxy has refused the content of one of them; 0: any number

	queue []*entry // oldest first; guarded by the publisher's mu
}

// run sends the messages of the lane, until it is empty or the publisher gives up.
func (l *lane) run() {
	p := l.publisher
	for p.ctx.Err() == nil {
		if l.retire() {
			return
		}
		select {
		case p.slots <- struct{}{}:
		case <-p.ctx.Done():
			continue
		}
		least, err := l.step()
		<-p.slots
		if err == nil {
			l.wait.reset()
			continue
		}
		if p.ctx.Err() != nil {
			continue
		}
		if p.cfg.OnFailure != nil {
			p.cfg.OnFailure(err)
		}
		pause := l.wait.next(least)
		p.cfg.Logger.Warn("publishing again", "session", l.address.session, "stream", l.address.stream,
			"wait", pause, "reason", err)
		_ = sleep(p.ctx, pause)
	}
	l.abandon()
}

// step sends one request. It returns an error when some of its messages have to be
// sent again, and the server's Retry-After.
func (l *lane) step() (least time.Duration, err error) {
	p := l.publisher
	begin := p.now()
	l.expire(begin)
	batch := l.batch()
	if len(batch) == 0 {
		return 0, nil
	}
	verdicts := make([]verdict, len(batch))
	err = p.post(l.address, batch, verdicts)
	for i, v := range verdicts {
		if e := batch[i]; v.kind == unknown && !e.isDoubtful() {
			e.doubt, e.err = begin, v.err
		}
	}
	if l.takeOut(batch, verdicts) {
		l.wait.reset()
	}
	if problem, ok := errors.AsType[*Error](err); ok && !errors.Is(err, errNoToken) {
		least = problem.RetryAfter
		switch problem.Status {
		case http.StatusRequestEntityTooLarge:
			p.halve(batch)
		case http.StatusForbidden:
			l.most = len(batch) / 2
			l.wait.reset()
		}
	}
	return least, err
}

// halve limits later requests, of all streams, to half the bytes of a batch that a proxy refused as too large.
func (p *Publisher) halve(batch []*entry) {
	bytes := 0
	for _, e := range batch {
		bytes += len(e.line)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.batchBytes = min(p.batchBytes, bytes/2)
}

// expire gives up the messages for which it is too late to find out by repetition
// whether they were stored. Only a message that was in a batch can be one of them.
func (l *lane) expire(now clocks.Instant) {
	p := l.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	tried := l.queue[:min(len(l.queue), p.cfg.MaxBatchMessages)]
	left := make([]*entry, 0, len(tried))
	for _, e := range tried {
		if e.isDoubtful() && e.doubt.Until(now) >= p.cfg.RepeatWithin {
			p.resolve(e, Stored{}, fmt.Errorf("%w: %w", ErrUnknown, e.err))
		} else {
			left = append(left, e)
		}
	}
	l.replace(len(tried), left)
}

// batch returns the messages of the next request, which stay in the queue.
func (l *lane) batch() []*entry {
	p := l.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	n, bytes := 0, 0
	for _, e := range l.queue {
		if bytes += len(e.line); n == cmp.Or(l.most, p.cfg.MaxBatchMessages) || n > 0 && bytes > p.batchBytes {
			break
		}
		n++
	}
	return slices.Clone(l.queue[:n])
}

// takeOut takes the messages that have an outcome out of the queue, whose first messages are
// the batch, and reports whether any had one.
func (l *lane) takeOut(batch []*entry, verdicts []verdict) bool {
	p := l.publisher
	var left []*entry
	for i, e := range batch {
		if k := verdicts[i].kind; k == untried || k == unknown {
			left = append(left, e)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l.replace(len(batch), left)
	for i, e := range batch {
		switch v := verdicts[i]; v.kind {
		case stored:
			l.most = 0
			p.resolve(e, v.stored, nil)
		case refused:
			p.resolve(e, Stored{}, e.doubtful(v.err))
		case untried, unknown:
		}
	}
	return len(left) < len(batch)
}

// doubtful returns an outcome of a message that is not known to be stored: an
// earlier attempt may have stored it.
func (e *entry) doubtful(err error) error {
	if !e.isDoubtful() {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// replace replaces the first n entries of the queue by left, which has at most n. The caller
// holds the publisher's mu.
func (l *lane) replace(n int, left []*entry) {
	from := n - len(left)
	clear(l.queue[:from])
	l.queue = l.queue[from:]
	copy(l.queue, left)
}

// retire ends the lane when it is empty: the next message makes another one.
func (l *lane) retire() bool {
	p := l.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(l.queue) > 0 {
		return false
	}
	delete(p.lanes, l.address)
	return true
}

// abandon gives up everything in the lane.
func (l *lane) abandon() {
	p := l.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range l.queue {
		p.resolve(e, Stored{}, e.doubtful(context.Cause(p.ctx)))
	}
	l.queue = nil
	delete(p.lanes, l.address)
}

// resolve sets a message's outcome, and makes room for another message. The publisher's mu is held
// until the message is out of the queue, since Flush waits only for messages in a queue.
func (p *Publisher) resolve(e *entry, s Stored, err error) {
	e.result.stored, e.result.err = s, err
	close(e.result.done)
	p.buffer.free(len(e.line))
}
