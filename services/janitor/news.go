package janitor

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
)

// newsSubject is where the acting janitor tells the others what it has deleted from a
// partition; newsSubjects is for all partitions.
const newsSubjects = "mcp.janitor.*.deleted"

func newsSubject(p int) string { return "mcp.janitor." + strconv.Itoa(p) + ".deleted" }

// newsBacklog is how many news may wait to be entered; more are dropped by the client,
// and the number of the next one tells.
const newsBacklog = 1024

// maxPending is how many removals a partition keeps that its ledger has yet to get to.
const maxPending = 4096

// news is what the acting janitor has done to a partition. It is told when it is done,
// so that whoever hears it never takes out what is still there. What is lost of it the
// next one tells by its number, and the last one a comparison with the log: see [partition.takeOver].
type news struct {
	Janitor string `json:"janitor"`
	Term    string `json:"term"`
	// Number counts the news of a term and partition, from 1 on.
	Number uint64 `json:"number"`
	// Birth is the partition's.
	Birth string `json:"birth"`
	// Gone are the entries that were deleted.
	Gone []gone `json:"gone,omitempty"`
	// Limits says that the limits of the partition have been changed.
	Limits bool `json:"limits,omitempty"`
}

// gone is a [Removal] that was done.
type gone struct {
	Reason    Reason   `json:"reason"`
	Session   string   `json:"session,omitempty"`
	Stream    string   `json:"stream,omitempty"`
	Sequences []uint64 `json:"sequences"`
}

// goneOf groups what was deleted by reason and stream.
func goneOf(done []doom) []gone {
	type group struct {
		reason          Reason
		session, stream string
	}
	at := map[group]int{}
	var out []gone
	for _, d := range done {
		g := group{d.reason, d.session, d.stream}
		i, ok := at[g]
		if !ok {
			i = len(out)
			at[g] = i
			out = append(out, gone{Reason: d.reason, Session: d.session, Stream: d.stream})
		}
		out[i].Sequences = append(out[i].Sequences, d.seq)
	}
	return out
}

// tellDeleted tells the other janitors what was deleted.
func (p *partition) tellDeleted(done []doom) {
	if len(done) == 0 {
		return
	}
	p.mu.Lock()
	birth := p.ledger.birth
	p.mu.Unlock()
	p.tell(news{Birth: birth, Gone: goneOf(done)})
}

// tell tells the other janitors, in a term. What does not get there they notice.
func (p *partition) tell(n news) {
	t := p.inCharge()
	if t == nil {
		return
	}
	p.mu.Lock()
	if p.toldIn != t.id {
		p.toldIn, p.told = t.id, 0
	}
	p.told++
	n.Janitor, n.Term, n.Number = t.lease.state.id, t.id, p.told
	p.mu.Unlock()
	data, err := json.Marshal(n)
	if err == nil {
		err = t.lease.nc.Publish(newsSubject(p.number), data)
	}
	if err != nil {
		p.logger.Debug("the other janitors do not hear what was deleted", "partition", p.number, "error", err)
	}
}

// hear enters the news of another janitor.
func (p *partition) hear(n news) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.Birth != p.ledger.birth {
		return // what was deleted from another log, or before the ledger begins
	}
	missed := p.heard.Term != "" && (n.Term == p.heard.Term && n.Number != p.heard.Number+1 || n.Term != p.heard.Term && n.Number != 1)
	p.heard = news{Term: n.Term, Number: n.Number}
	p.sure, p.ledger.doubts.standby = false, true
	for _, g := range n.Gone {
		p.pending = append(p.pending, Removal(g))
	}
	switch {
	case missed || len(p.pending) > maxPending:
		p.logger.Info("what another janitor has deleted was missed; the ledger begins anew", "partition", p.number)
		p.drop()
	case n.Limits:
		p.drop()
	default:
		p.enter()
		p.progress()
	}
}

// enter takes out of the ledger what another janitor has deleted, as far as the ledger
// has got. The caller holds mu.
func (p *partition) enter() {
	for len(p.pending) > 0 {
		r := p.pending[0]
		if len(r.Sequences) > 0 && slices.Max(r.Sequences) > p.ledger.through {
			return
		}
		p.pending = p.pending[1:]
		if !p.ledger.remove(r) {
			p.logger.Info("what another janitor has deleted does not fit the ledger, which begins anew", "partition", p.number, "reason", string(r.Reason))
			p.drop()
			return
		}
	}
	p.pending = nil
}

// remove takes out what another janitor has deleted. It reports false when the ledger
// cannot be brought to what the log is.
func (l *ledger) remove(r Removal) bool {
	slices.Sort(r.Sequences)
	in := func(seq uint64) bool { return contains(r.Sequences, seq) }
	var mine []doom
	for _, d := range l.doomed {
		if in(d.seq) {
			mine = append(mine, d)
		}
	}
	l.deleted(mine)
	if r.Reason == Stray {
		l.strays = slices.DeleteFunc(l.strays, in)
		return true
	}
	a := l.account(r.Session)
	switch {
	case r.Reason == Superseded && r.Stream == "":
		a.markers = a.drop(a.markers, func(m marker) bool { return in(m.seq) })
		return true
	case r.Reason == Superseded:
		s := l.stream(a, r.Stream)
		s.markers = a.drop(s.markers, func(m marker) bool { return in(m.seq) })
		return true
	case r.Reason == AfterClose:
		return l.removeNewest(a, l.stream(a, r.Stream), in)
	default:
		return l.removeOldest(a, l.stream(a, r.Stream), r, in)
	}
}

// removeOldest takes out the oldest events of a stream. Those that never came were
// missed, and are known of now.
func (l *ledger) removeOldest(a *account, s *stream, r Removal, in func(uint64) bool) bool {
	for len(s.events) > 0 && in(s.events[0].seq) {
		l.pop(a, s, r.Reason.mark())
	}
	for _, seq := range r.Sequences {
		if seq <= a.closedAt(s) && seq > s.removed {
			s.removed, s.reason = seq, r.Reason.mark()
		}
	}
	return !slices.ContainsFunc(s.events, func(e entry) bool { return in(e.seq) })
}

// removeNewest takes out events after a =close marker. JetStream has counted them until
// they were deleted, and the ledger until now: at the limit, or near it, they may have
// made it take out an event that is still there.
func (l *ledger) removeNewest(a *account, s *stream, in func(uint64) bool) bool {
	atLimit := l.limit > 0 && int64(len(s.events)) >= l.limit
	var kept []entry
	for len(s.events) > 0 {
		last := s.events[len(s.events)-1]
		if last.seq <= a.closedAt(s) {
			break
		}
		l.popNewest(a, s)
		if !in(last.seq) {
			kept = append(kept, last)
		}
	}
	for _, e := range slices.Backward(kept) {
		l.count(a, s, e, 1)
		s.events = append(s.events, e)
	}
	return !atLimit
}

// herald hears what other janitors do.
type herald struct {
	nc         *nats.Conn
	id         string // of this one
	partitions []*partition
	logger     *slog.Logger
}

// open subscribes. It has to be called before any ledger begins: what was deleted before
// is in the trim marks that a ledger begins with, what is deleted later is heard.
func (h *herald) open() (<-chan *nats.Msg, func(), error) {
	heard := make(chan *nats.Msg, newsBacklog)
	sub, err := h.nc.ChanSubscribe(newsSubjects, heard)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot subscribe to %s: %w", newsSubjects, err)
	}
	return heard, func() { _ = sub.Unsubscribe() }, nil // the connection may be closed already
}

// run enters what is heard until ctx ends.
func (h *herald) run(ctx context.Context, heard <-chan *nats.Msg) {
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-heard:
			var n news
			p, ok := h.partitionOf(msg.Subject)
			if err := json.Unmarshal(msg.Data, &n); err != nil || !ok {
				h.logger.Warn("news of another janitor cannot be read", "subject", msg.Subject, "error", err)
			} else if n.Janitor != h.id {
				p.hear(n)
			}
		}
	}
}

func (h *herald) partitionOf(subject string) (*partition, bool) {
	i := slices.IndexFunc(h.partitions, func(p *partition) bool { return newsSubject(p.number) == subject })
	if i < 0 {
		return nil, false
	}
	return h.partitions[i], true
}
