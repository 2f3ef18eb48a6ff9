package mcpstore

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"rejoin/shared/event"
)

// standalone is the log's name for the SDK's stream without one, which carries what
// belongs to no request.
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

// stream is what a store knows of a stream that it writes. Its fields belong to who
// holds its token; count is read by others too.
type stream struct {
	at     place
	token  chan struct{} // holds one token
	life   string        // of the session, that writer writes to
	writer string        // empty until the store knows where the stream ended before
	before int           // of count, what others had given in that life
	lost   bool          // the newest Append has failed, and the log does not say so yet

	mu    sync.Mutex
	count int // indexes given; without a writer, those given since
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
// so many indexes. What they gave in another life does not count.
func (st *stream) begin(life string, before int) {
	st.add(before - st.before)
	st.life, st.writer, st.before = life, newWriter(), before
}

func (st *stream) counted() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.count
}

func (st *stream) add(n int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.count += n
}

// streams holds the streams that a store writes, and forgets those that were used
// least recently, unless they are in use or have lost something. A stream that was
// forgotten is read from the log again.
type streams struct {
	most int

	mu    sync.Mutex
	all   map[place]*list.Element // of *stream
	order *list.List              // newest first
}

func newStreams(most int) *streams {
	return &streams{most: most, all: map[place]*list.Element{}, order: list.New()}
}

// get returns a stream, and nil when it is not known.
func (s *streams) get(at place) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[at]
	if e == nil {
		return nil
	}
	s.order.MoveToFront(e)
	return streamOf(e)
}

// use returns a stream, and makes it when it is not known.
func (s *streams) use(at place) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.all[at]; e != nil {
		s.order.MoveToFront(e)
		return streamOf(e)
	}
	st := &stream{at: at, token: make(chan struct{}, 1)}
	s.all[at] = s.order.PushFront(st)
	s.trim()
	return st
}

// trim forgets streams beyond the most. It looks at a few of the oldest only.
func (s *streams) trim() {
	const looks = 8
	e := s.order.Back()
	for n := 0; n < looks && len(s.all) > s.most && e != s.order.Front(); n++ {
		old, st := e, streamOf(e)
		e = e.Prev()
		select {
		case st.token <- struct{}{}:
			if !st.lost {
				s.order.Remove(old)
				delete(s.all, st.at)
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
	for at, e := range s.all {
		if at.session == session {
			s.order.Remove(e)
			delete(s.all, at)
		}
	}
}

func streamOf(e *list.Element) *stream {
	return e.Value.(*stream) //nolint:errcheck,forcetypeassert // the list holds nothing else
}
