package janitor

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/inspect"
	"rejoin/shared/web"
)

const (
	// answerWithin is how long edges may take to answer for operators.
	answerWithin = time.Second
	// edgeMissed is how long an edge that answers no more is reported as silent. One that
	// was replaced never answers again.
	edgeMissed = 2 * time.Minute
	// maxAsking bounds the requests that wait for edges at a time.
	maxAsking = 32
)

// edges asks all edges, and knows which of them have answered a moment ago. It is safe
// for concurrent use.
type edges struct {
	nc     *nats.Conn
	asking chan struct{} // holds a token for each question under way
	within time.Duration // answerWithin

	mu    sync.Mutex
	heard map[string]time.Time // when each answered last
}

func newEdges(nc *nats.Conn) *edges {
	return &edges{nc: nc, asking: make(chan struct{}, maxAsking), within: answerWithin, heard: map[string]time.Time{}}
}

// edgesInfo counts the edges that have answered, and those that have not.
type edgesInfo struct {
	Answered int `json:"answered"`
	// Silent are those that did answer within two minutes, and have not now.
	Silent int `json:"silent"`
	// Reachable is false when no edge could be asked, since NATS is unavailable.
	Reachable bool `json:"reachable"`
}

// ask asks all edges. An error is a problem: too many questions are under way.
func (e *edges) ask(ctx context.Context, q inspect.Question) ([]inspect.Answer, edgesInfo, error) {
	select {
	case e.asking <- struct{}{}:
		defer func() { <-e.asking }()
	default:
		return nil, edgesInfo{}, web.New(web.CodeUnavailable, "Too many requests wait for the edges.")
	}
	answers, err := inspect.Ask(ctx, e.nc, q, e.known(time.Now()), e.within)
	info := e.heardFrom(answers, time.Now())
	info.Reachable = err == nil
	return answers, info, nil // the error is in info
}

// known forgets edges that have not answered for a while, and returns how many may answer.
func (e *edges) known(now time.Time) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.heard, func(_ string, at time.Time) bool { return now.Sub(at) >= edgeMissed })
	return len(e.heard)
}

// heardFrom notes the edges that have answered.
func (e *edges) heardFrom(answers []inspect.Answer, now time.Time) edgesInfo {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range answers {
		e.heard[a.Edge] = now
	}
	return edgesInfo{Answered: len(answers), Silent: max(len(e.heard)-len(answers), 0)}
}
