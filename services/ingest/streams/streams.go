// Package streams has the state of sessions' streams at an ingest: which are open, to bound their
// number, and which have ended.
package streams

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/errgroup"

	"rejoin/shared/session"
)

const (
	// maxHeld bounds the sessions and streams that are known, but for the streams of one session, which its own
	// limit bounds: some 20 MB, 40 with the longest names.
	maxHeld = 1 << 17
	// longestIdle is how long a stream counts at most after its last message.
	longestIdle = 24 * time.Hour
	// maxAsked is how many streams DropEnded asks for: all with the default limit of 100.
	maxAsked = 256
	// askedAtOnce is how many of them at a time.
	askedAtOnce = 16
	// tidyEvery is how often a full session is looked at for streams that do not count any more.
	tidyEvery = time.Second
)

// ErrTooMany is returned when a session has as many open streams as it may.
var ErrTooMany = errors.New("too many open streams")

// Limit bounds the open streams of a session. It knows those that this ingest
// received messages for, since it began and while there is room: then it forgets the
// sessions whose last message is the longest ago. So with n ingests a session may have n
// times as many, and some more after a restart; only the janitor's ledger knows all of a
// session's streams, and to ask it would take a request for every new one.
//
// A stream counts from its first message until it has ended, or until it had no message for
// as long as the log retains one, a day at most. The caller reports an end with Ended, and
// calls DropEnded before it refuses a stream, since other ingests end streams too. It is safe for concurrent use.
type Limit struct {
	most     func(session.Record) int64 // of a session; below 0: any number
	retained func() time.Duration       // how long the log retains an event; negative: without limit

	mu    sync.Mutex
	known *simplelru.LRU[string, *ofSession] // by session
	held  int                                // streams of all
}

// ofSession are the streams of one life of a session.
type ofSession struct {
	life    string
	streams map[string]ofStream
	tidied  time.Time // when tidy last looked at all of them
}

type ofStream struct {
	last      int64 // the Unix time of its last message, in nanoseconds
	beginning int   // the messages that are to be sent to the log, while none was; 0 from then on
}

// NewLimit returns a Limit to which no stream is known: most is the limit of a session, retained how
// long the log retains an event.
func NewLimit(most func(session.Record) int64, retained func() time.Duration) *Limit {
	o := &Limit{most: most, retained: retained}
	o.known, _ = simplelru.NewLRU(maxHeld, func(_ string, known *ofSession) { o.held -= len(known.streams) }) // fails only without a size
	return o
}

// Enter counts a message of a stream, and reports whether it may be the first one that is sent to the
// log: then the caller must call Sent. The error is ErrTooMany, when the stream is new and one too many.
func (o *Limit) Enter(rec session.Record, stream string, now time.Time) (first bool, err error) {
	return o.enter(rec, stream, now, true)
}

// Check returns the error that Enter would, and counts nothing.
func (o *Limit) Check(rec session.Record, stream string, now time.Time) error {
	_, err := o.enter(rec, stream, now, false)
	return err
}

// Sent notes whether a message that Enter called the first one was sent to the log. A stream of which
// none was sent is forgotten.
func (o *Limit) Sent(rec session.Record, stream string, sent bool) {
	o.change(rec.Session, func(known *ofSession) {
		is := known.streams[stream]
		if known.life != rec.Life || is.beginning == 0 {
			return
		}
		if sent {
			is.beginning = 0
		} else if is.beginning--; is.beginning == 0 {
			delete(known.streams, stream)
			return
		}
		known.streams[stream] = is
	})
}

// DropEnded asks with ended which streams of a session have ended, of those that count, and counts them no more. It asks
// for any maxAsked of them, askedAtOnce at a time: one after the other they would take longer than a
// publish may over a slow link. The error is the first one of ended. When ctx has ended, the answers
// until then are enough, as they are with more streams than maxAsked.
func (o *Limit) DropEnded(ctx context.Context, rec session.Record, ended func(context.Context, string) (bool, error)) error {
	var answered atomic.Bool
	work, asking := errgroup.WithContext(ctx)
	work.SetLimit(askedAtOnce)
	for _, stream := range o.counted(rec) {
		work.Go(func() error {
			is, err := ended(asking, stream)
			if err != nil {
				return err
			}
			if answered.Store(true); is {
				o.Ended(rec.Session, stream)
			}
			return nil
		})
	}
	if err := work.Wait(); ctx.Err() == nil || !answered.Load() {
		return err
	}
	return nil
}

// counted returns up to maxAsked of the streams of a session that count.
func (o *Limit) counted(rec session.Record) (all []string) {
	o.change(rec.Session, func(known *ofSession) {
		for stream := range known.streams {
			if known.life != rec.Life || len(all) == maxAsked {
				break
			}
			all = append(all, stream)
		}
	})
	return all
}

func (o *Limit) enter(rec session.Record, stream string, now time.Time, count bool) (first bool, err error) {
	most := o.most(rec)
	if most < 0 {
		return false, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.of(rec)
	is, ok := known.streams[stream]
	if !ok && int64(len(known.streams)) >= most {
		o.tidy(known, now)
		if int64(len(known.streams)) >= most {
			return false, ErrTooMany
		}
	}
	if !count {
		return false, nil
	}
	if !ok {
		o.held++
	}
	first = !ok || is.beginning > 0
	if is.last = now.UnixNano(); first {
		is.beginning++
	}
	known.streams[stream] = is
	for o.held-len(known.streams)+o.known.Len() > maxHeld {
		o.known.RemoveOldest()
	}
	return first, nil
}

// of returns the known streams of a session's life. The caller holds the lock.
func (o *Limit) of(rec session.Record) *ofSession {
	known, ok := o.known.Get(rec.Session)
	if ok && known.life == rec.Life {
		return known
	}
	if ok {
		o.held -= len(known.streams)
	}
	known = &ofSession{life: rec.Life, streams: map[string]ofStream{}}
	o.known.Add(rec.Session, known)
	return known
}

// Ended forgets a stream that has ended, or all of a session when stream is empty.
func (o *Limit) Ended(session, stream string) {
	o.change(session, func(known *ofSession) {
		if stream == "" {
			clear(known.streams)
		}
		delete(known.streams, stream)
	})
}

// change calls do with the known streams of a session, if there are any; do may forget streams.
func (o *Limit) change(session string, do func(*ofSession)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if known, ok := o.known.Peek(session); ok {
		before := len(known.streams)
		do(known)
		o.held -= before - len(known.streams)
	}
}

// tidy forgets the streams that do not count any more. The caller holds the lock.
func (o *Limit) tidy(known *ofSession, now time.Time) {
	if now.Sub(known.tidied) < tidyEvery {
		return
	}
	known.tidied = now
	idle := longestIdle
	if retained := o.retained(); retained >= 0 {
		idle = min(idle, retained)
	}
	for stream, is := range known.streams {
		if now.UnixNano()-is.last > int64(idle) {
			delete(known.streams, stream)
			o.held--
		}
	}
}

// maxEndings bounds the endings that are remembered: some 4 MB.
const maxEndings = 1 << 14

// Endings are the newest streams of which JetStream refused a message because they have
// ended. An answer whose status is written before the first message is stored has status 200, and
// says where it stopped; its repeat is to be refused with a status. It is safe for concurrent use.
type Endings struct{ known *lru.Cache[ending, struct{}] }

type ending struct{ session, life, stream string }

// NewEndings returns empty endings.
func NewEndings() Endings {
	cache, _ := lru.New[ending, struct{}](maxEndings) // fails only without a size
	return Endings{cache}
}

// Add notes that a stream of a life of a session has ended.
func (e Endings) Add(session, life, stream string) {
	e.known.Add(ending{session, life, stream}, struct{}{})
}

// Has reports whether a stream is among them.
func (e Endings) Has(session, life, stream string) bool {
	return e.known.Contains(ending{session, life, stream})
}
