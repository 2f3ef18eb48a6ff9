package mcpstore

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"rejoin/shared/event"
)

// standalone is the log's name for the SDK's stream without a name, which carries the
// messages that belong to no request.
const standalone = "standalone"

// place is a stream of a session, under its names in the log.
type place struct{ session, stream string }

// placeOf checks names. The error wraps ErrInvalidName.
func placeOf(session, stream string) (place, error) {
	switch stream {
	case "":
		stream = standalone
	case standalone:
		return place{}, fmt.Errorf("%w: stream %q is reserved", ErrInvalidName, stream)
	}
	if err := event.CheckSession(session); err != nil {
		return place{}, fmt.Errorf("%w: session: %w", ErrInvalidName, err)
	}
	if err := event.CheckStream(stream); err != nil {
		return place{}, fmt.Errorf("%w: stream: %w", ErrInvalidName, err)
	}
	return place{session, stream}, nil
}

// stream is the store's state of a stream that it writes. Its fields belong to the holder
// of its token; others read count too.
type stream struct {
	at     place
	token  chan struct{} // holds one token
	life   string        // of the session, that writer writes to
	writer string        // empty until the store has found the last index of the stream
	before int           // of count, the indexes of other writers in that life
	lost   bool          // the newest Append has failed, and the log has no note of it yet
	count  atomic.Int64  // indexes given; without a writer, those given since
}

// own takes the token. The function that it returns gives it back.
func (st *stream) own(ctx context.Context) (release func(), err error) {
	select {
	case st.token <- struct{}{}:
		return func() { <-st.token }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// begin gives the stream a new writer in a life of its session, in which others have given
// so many indexes. Their indexes in another life do not count.
func (st *stream) begin(life string, before int) {
	st.add(before - st.before)
	st.life, st.writer, st.before = life, newWriter(), before
}

func (st *stream) counted() int { return int(st.count.Load()) }

func (st *stream) add(n int) { st.count.Add(int64(n)) }

// streams holds the streams that a store writes, and forgets those that were used
// least recently, unless they are in use or have lost an event. A stream that was
// forgotten is read from the log again.
type streams struct {
	most int

	mu  sync.Mutex
	all *simplelru.LRU[place, *stream] // unbounded: trim does not forget every stream
}

func newStreams(most int) *streams {
	all, _ := simplelru.NewLRU[place, *stream](math.MaxInt, nil) // fails for a size below 1 only
	return &streams{most: most, all: all}
}

// get returns a stream, and nil when it is not known.
func (s *streams) get(at place) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, _ := s.all.Get(at)
	return st
}

// use returns a stream, and makes it when it is not known.
func (s *streams) use(at place) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st, ok := s.all.Get(at); ok {
		return st
	}
	st := &stream{at: at, token: make(chan struct{}, 1)}
	s.all.Add(at, st)
	s.trim(st)
	return st
}

// trim forgets streams beyond the most, but not the new one. It looks at a few of the oldest
// only; those that it must not forget become the newest.
func (s *streams) trim(added *stream) {
	const looks = 8
	for range looks {
		at, st, _ := s.all.GetOldest()
		if s.all.Len() <= s.most || st == added {
			return
		}
		s.all.Get(at)
		select {
		case st.token <- struct{}{}:
			if !st.lost {
				s.all.Remove(at)
			}
			<-st.token
		default: // it is in use
		}
	}
}

// forget forgets the streams of a session.
func (s *streams) forget(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.all.Keys() {
		if at.session == session {
			s.all.Remove(at)
		}
	}
}
