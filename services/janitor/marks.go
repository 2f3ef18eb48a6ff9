package janitor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/marks"
)

const (
	// marksBacklog is how many questions may wait to be read; more are dropped by
	// the client, which logs it, and the asker times out.
	marksBacklog = 4096
	// marksWaiting is how many questions may wait for the ledger; more are refused.
	marksWaiting = 1024
	// marksPatience is how long a question waits for the ledger, less than an edge
	// waits for an answer.
	marksPatience = marks.AskTimeout / 2
)

// Results of a question, for the metric.
const (
	answered = "answered"
	refused  = "refused"
	dropped  = "dropped"
)

// clerk answers the edges' questions for marks.
type clerk struct {
	nc         *nats.Conn
	partitions []*partition
	metrics    *metrics
	logger     *slog.Logger
}

// run answers from when all ledgers are complete until ctx ends. A question that
// can be answered at once is; one that has to wait does so in a goroutine of its own.
func (c *clerk) run(ctx context.Context) error {
	for _, p := range c.partitions {
		if !p.await(ctx, func(l *ledger) bool { return l.complete }) {
			return nil // ctx has ended
		}
	}
	questions := make(chan *nats.Msg, marksBacklog)
	sub, err := c.nc.ChanQueueSubscribe(marks.Subject, marks.Queue, questions)
	if err != nil {
		return fmt.Errorf("cannot subscribe to %s: %w", marks.Subject, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be closed already
	c.logger.Info("the ledger is complete", "partitions", len(c.partitions))

	var waiting sync.WaitGroup
	defer waiting.Wait()
	slots := make(chan struct{}, marksWaiting)
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-questions:
			req, p, err := c.read(msg.Data)
			if err != nil {
				c.respond(msg, marks.Reply{Error: err.Error()})
				continue
			}
			if reply, ok := p.answer(req, false); ok {
				c.respond(msg, reply)
				continue
			}
			select {
			case slots <- struct{}{}:
			default:
				c.metrics.asked.WithLabelValues(dropped).Inc()
				c.respond(msg, marks.Reply{Error: "too many questions wait for the ledger"})
				continue
			}
			waiting.Go(func() {
				defer func() { <-slots }()
				c.respond(msg, p.answerLater(ctx, req))
			})
		}
	}
}

func (c *clerk) read(data []byte) (marks.Request, *partition, error) {
	var req marks.Request
	if err := json.Unmarshal(data, &req); err != nil {
		return req, nil, fmt.Errorf("the question cannot be read: %w", err)
	}
	if req.Partition < 0 || req.Partition >= len(c.partitions) {
		return req, nil, fmt.Errorf("there is no partition %d", req.Partition)
	}
	if len(req.Places) > marks.MaxPlaces {
		return req, nil, fmt.Errorf("%d places are too many", len(req.Places))
	}
	return req, c.partitions[req.Partition], nil
}

func (c *clerk) respond(msg *nats.Msg, reply marks.Reply) {
	result := answered
	if reply.Error != "" {
		result = refused
	}
	c.metrics.asked.WithLabelValues(result).Inc()
	// Without HTML's escapes, which would make six bytes of one in a name: a full
	// page of the longest names must fit into 1 MiB.
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	err := enc.Encode(reply)
	if err == nil {
		err = msg.Respond(body.Bytes())
	}
	if err != nil {
		c.logger.Debug("an edge gets no marks", "error", err)
	}
}

// answers reports whether the ledger can answer a question: it has followed the
// log far enough, and what it missed is attributed.
func (l *ledger) answers(req marks.Request) bool {
	return l.exact() && l.birth == req.Birth && l.heardOf(req.Generation) && l.under(req.Limit) && l.through >= req.Through
}

// heardOf reports whether the ledger follows a life of the partition that an edge has
// seen; an empty generation means that it did not say.
func (l *ledger) heardOf(generation string) bool {
	return generation == "" || slices.ContainsFunc(l.generations, func(g event.Generation) bool { return g.ID == generation })
}

// under reports whether the ledger is under a limit that an edge has seen; 0 means
// that it did not say. With a smaller one the partition may have lost what the
// ledger still has.
func (l *ledger) under(limit int64) bool { return limit == 0 || limit == l.limit }

// answer answers a question if the ledger is as good as it will get, or, when it
// is late, if the answer is right at all.
func (p *partition) answer(req marks.Request, late bool) (marks.Reply, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.ledger
	if !l.answers(req) && !late {
		return marks.Reply{}, false
	}
	switch {
	case !l.complete:
		return marks.Reply{Error: "the ledger is not complete"}, true
	case l.birth != req.Birth:
		return marks.Reply{Error: "the partition has another birth"}, true
	case !l.heardOf(req.Generation):
		return marks.Reply{Error: "the ledger has not heard of the partition's generation"}, true
	case !l.under(req.Limit):
		return marks.Reply{Error: "the partition has another limit"}, true
	case l.through < req.Through:
		return marks.Reply{Error: fmt.Sprintf("the ledger has followed the log to %d only", l.through)}, true
	}
	// An edge of before a rollback may have seen more.
	l.advance(min(req.First, l.through+1))
	reply := l.answer(req, p.now())
	if n := len(l.generations); n > 0 {
		reply.Generation = l.generations[n-1].ID
	}
	return reply, true
}

func (p *partition) answerLater(ctx context.Context, req marks.Request) marks.Reply {
	ctx, cancel := context.WithTimeout(ctx, marksPatience)
	defer cancel()
	p.await(ctx, func(l *ledger) bool { return l.answers(req) })
	reply, _ := p.answer(req, true)
	return reply
}
