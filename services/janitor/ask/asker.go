package ask

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/scatter"
)

const (
	// holdWithin is how long the janitors may take to answer with their holdings.
	holdWithin = 2 * time.Second
	// answerWithin is how long one that holds a partition may take for the answer: it may ask the
	// registry or the log for five seconds. A sweep has sweepWithin.
	answerWithin = 7 * time.Second
	sweepWithin  = time.Minute
	// maxBytes is the most bytes that all answers to a question may have.
	maxBytes = 32 << 20
	// maxAsking bounds the questions that wait for other janitors at a time, and so the memory
	// that they take: maxBytes each.
	maxAsking = 8
)

// rounds are how long each of the questions for the holdings waits. A partition whose janitor
// is being replaced may have another one in the next round.
var rounds = []time.Duration{holdWithin / 20, holdWithin / 5, holdWithin * 3 / 4}

// Asker answers for all partitions of a log. It is safe for concurrent use.
type Asker struct {
	nc      *nats.Conn
	janitor string // this one's name, a token of a subject
	hold    func() Holding
	answer  func(context.Context, Question) Answer
	asking  chan struct{} // holds a token for each question under way
	within  time.Duration // answerWithin
	bytes   int           // maxBytes
}

// New returns the asker of a janitor, whose name is a token of a subject and no other janitor's.
// hold returns the partitions that it can answer for at the moment, answer answers for some of them;
// both are called concurrently.
func New(nc *nats.Conn, janitor string, hold func() Holding, answer func(context.Context, Question) Answer) *Asker {
	return &Asker{
		nc: nc, janitor: janitor, answer: answer, asking: make(chan struct{}, maxAsking), within: answerWithin, bytes: maxBytes,
		hold: func() Holding {
			h := hold()
			h.Janitor = janitor
			return h
		},
	}
}

// Ask puts a question about partitions to the janitors that hold them, and returns their answers, of
// which no two are about the same partition. It asks no other janitor when this one holds all of them.
//
// An error is [ErrBusy], [ErrTooLarge], or a [*Lacking] for partitions without an answer. Except
// to a question about [Cursors], there are no answers beside an error.
func (a *Asker) Ask(ctx context.Context, q Question, partitions []int) ([]Answer, error) {
	byHolder, lacking := map[string][]int{a.janitor: partitions}, (*Lacking)(nil)
	if len(without(partitions, a.hold().Complete)) > 0 {
		select {
		case a.asking <- struct{}{}:
			defer func() { <-a.asking }()
		default:
			return nil, ErrBusy
		}
		if byHolder, lacking = a.holders(ctx, partitions); lacking != nil && q.About != Cursors {
			return nil, lacking
		}
	}
	return a.askEach(ctx, q, byHolder, lacking)
}

// without returns all but some.
func without(all, some []int) []int {
	return slices.DeleteFunc(slices.Clone(all), func(p int) bool { return slices.Contains(some, p) })
}

// holders returns which janitor to ask about which of the partitions.
func (a *Asker) holders(ctx context.Context, partitions []int) (map[string][]int, *Lacking) {
	ctx, cancel := context.WithTimeout(ctx, holdWithin)
	defer cancel()
	var holders map[int]string // of each partition the first janitor that can answer; empty: one holds it that cannot yet
	add := func(h Holding) {
		for _, p := range h.Incomplete {
			if _, held := holders[p]; !held {
				holders[p] = ""
			}
		}
		for _, p := range h.Complete {
			holders[p] = cmp.Or(holders[p], h.Janitor)
		}
	}
	complete := func() bool { // more waiting finds no other holder
		return !slices.ContainsFunc(partitions, func(p int) bool { _, held := holders[p]; return !held })
	}
	connected := true
	for _, wait := range rounds {
		holders = map[int]string{}
		if add(a.hold()); complete() {
			break
		}
		if connected = a.nc.IsConnected(); !connected {
			break
		}
		over := time.After(wait)
		// A janitor that answers nonsense holds nothing.
		_, _ = scatter.AskUntil(ctx, a.nc, Subject, struct{}{}, Holding.sender, func(all []Holding) bool {
			add(all[len(all)-1])
			return complete()
		}, 0, wait)
		if complete() {
			break
		}
		select {
		case <-ctx.Done():
		case <-over: // there are no responders, which NATS reports at once
		}
	}
	of, lacking := map[string][]int{}, &Lacking{Disconnected: !connected}
	for _, p := range partitions {
		switch janitor, held := holders[p]; {
		case !held:
			lacking.Unanswered = append(lacking.Unanswered, p)
		case janitor == "":
			lacking.Incomplete = append(lacking.Incomplete, p)
		default:
			of[janitor] = append(of[janitor], p)
		}
	}
	if len(lacking.Unanswered)+len(lacking.Incomplete) == 0 {
		return of, nil
	}
	return of, lacking
}

// askEach asks the janitors at the same time.
func (a *Asker) askEach(ctx context.Context, q Question, byHolder map[string][]int, lacking *Lacking) ([]Answer, error) {
	within := a.within
	if q.About == Sweep {
		within = sweepWithin
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		answers []Answer
		failed  []int
		large   bool
		room    atomic.Int64
	)
	room.Store(int64(a.bytes))
	for _, janitor := range slices.Sorted(maps.Keys(byHolder)) {
		wg.Go(func() {
			q := q
			q.Partitions = byHolder[janitor]
			var answer Answer
			var err error
			if janitor == a.janitor {
				answer = a.answer(ctx, q)
			} else {
				answer, err = a.askOne(ctx, janitor, q, &room)
			}
			mu.Lock()
			defer mu.Unlock()
			missing := without(q.Partitions, answer.Partitions)
			if err != nil || len(without(answer.Partitions, q.Partitions)) > 0 {
				missing = q.Partitions
			}
			large = large || errors.Is(err, ErrTooLarge)
			failed = append(failed, missing...)
			if len(missing) < len(q.Partitions) {
				answers = append(answers, answer)
			}
		})
	}
	wg.Wait()
	if len(failed) > 0 {
		if lacking == nil {
			lacking = &Lacking{}
		}
		lacking.Unanswered = append(lacking.Unanswered, failed...)
	}
	switch {
	case large:
		return nil, ErrTooLarge
	case lacking == nil:
		return answers, nil
	case q.About == Cursors:
		return answers, lacking
	default:
		return nil, lacking
	}
}

// askOne asks a janitor. Its answer takes from the room for all answers.
func (a *Asker) askOne(ctx context.Context, janitor string, q Question, room *atomic.Int64) (Answer, error) {
	data, err := event.EncodeJSON(q)
	if err != nil {
		return Answer{}, err
	}
	sub, err := a.nc.SubscribeSync(a.nc.NewRespInbox())
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be closed already
	if err := a.nc.PublishRequest(subjectOf(janitor), sub.Subject, data); err != nil {
		return Answer{}, err
	}
	var all []byte
	for left := -1; left != 0; {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return Answer{}, err
		}
		if room.Add(-int64(len(msg.Data))) < 0 {
			return Answer{}, ErrTooLarge
		}
		n, err := strconv.Atoi(msg.Header.Get(partsHeader))
		if err != nil || n < 0 || left >= 0 && n != left-1 {
			return Answer{}, fmt.Errorf("%w: a part is missing", ErrInvalid)
		}
		left = n
		all = append(all, msg.Data...)
	}
	if len(all) == 0 {
		return Answer{}, ErrTooLarge
	}
	var answer Answer
	if err := json.Unmarshal(all, &answer); err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if len(answer.Partitions) > 0 && len(answer.Cursors) != len(q.Cursors) {
		return Answer{}, fmt.Errorf("%w: %d cursors of %d", ErrInvalid, len(answer.Cursors), len(q.Cursors))
	}
	return answer, nil
}
