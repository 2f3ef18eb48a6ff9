package ask

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/inbox"
	"rejoin/shared/scatter"
)

const (
	// partBytes is the most bytes of a part, or half of the NATS server's maximum payload if that is less.
	partBytes = 512 << 10
	// backlog is how many questions may wait; the NATS client drops more, and the asker
	// misses the answer.
	backlog = 64
	// maxAnswering is how many questions are answered at a time, and maxSweeps how many of those
	// that ask for a sweep, which takes long. More sweeps are not begun.
	maxAnswering = 4
	maxSweeps    = 4
)

// Serve answers other janitors until ctx ends. It returns an error when the connection is closed.
func (a *Asker) Serve(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	questions := make(chan *nats.Msg, backlog)
	sub, err := a.nc.ChanSubscribe(subjectOf(a.janitor), questions)
	if err != nil {
		return fmt.Errorf("cannot subscribe to %s: %w", subjectOf(a.janitor), err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be closed already
	var wg sync.WaitGroup
	defer wg.Wait()
	sweeps := make(chan struct{}, maxSweeps)
	for range maxAnswering {
		wg.Go(func() { a.work(ctx, questions, sweeps, &wg) })
	}
	parse := func([]byte) (struct{}, error) { return struct{}{}, nil }
	err = scatter.Serve(ctx, a.nc, Subject, parse, func(struct{}) Holding { return a.hold() })
	stop()
	return err
}

// work answers one question after the other. A sweep gets a goroutine of its own.
func (a *Asker) work(ctx context.Context, questions <-chan *nats.Msg, sweeps chan struct{}, wg *sync.WaitGroup) {
	for {
		var msg *nats.Msg
		select {
		case <-ctx.Done():
			return
		case msg = <-questions:
		}
		q, err := Parse(msg.Data)
		switch {
		case err != nil || !inbox.Is(msg.Reply):
		case q.About != Sweep:
			a.respond(msg, a.answer(ctx, q))
		default:
			select {
			case sweeps <- struct{}{}:
				wg.Go(func() {
					defer func() { <-sweeps }()
					a.respond(msg, a.answer(ctx, q))
				})
			default:
				a.respond(msg, Answer{Partitions: q.Partitions, Swept: NotBegun})
			}
		}
	}
}

// respond sends an answer in parts. If one of them is lost, there is no answer.
func (a *Asker) respond(to *nats.Msg, answer Answer) {
	data, err := event.EncodeJSON(answer)
	if err != nil {
		return
	}
	if len(data) > a.bytes {
		data = nil
	}
	size := min(partBytes, int(a.nc.MaxPayload())/2)
	for left := max(len(data)-1, 0) / size; left >= 0 && err == nil; left-- {
		part := nats.NewMsg(to.Reply)
		part.Header.Set(partsHeader, strconv.Itoa(left))
		n := min(size, len(data))
		part.Data, data = data[:n], data[n:]
		err = a.nc.PublishMsg(part)
	}
}
