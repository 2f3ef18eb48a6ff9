package cases

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"rejoin/bench/measure"
	"rejoin/bench/system"
)

const (
	// sharedStreams is how many streams each session has.
	sharedStreams = 10
	// sharedReads is how many streams are read.
	sharedReads = 500
)

// scaleNames measures the cost of a log with many names, with one of each service: the time that
// each takes to start and its memory, how long the list of sessions, a sweep and the look at a
// session take, and a page of a stream of which the edge has nothing in memory.
func scaleNames(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	log, err := sharedLog(ctx, p, sharedStreams, 2)
	if err != nil {
		return f, err
	}
	defer log.Close()
	if err := f.AddResident("nats", log.PIDs()); err != nil {
		return f, err
	}
	started := map[string]*system.Program{}
	defer func() {
		for _, s := range started {
			s.Stop()
		}
	}()
	for _, service := range []struct {
		name  string
		start func() (*system.Program, error)
	}{
		{"janitor", func() (*system.Program, error) { return system.StartJanitor(ctx, p, log.URL) }},
		{"ingest", func() (*system.Program, error) { return system.StartIngest(ctx, p, log.URL) }},
		{"edge", func() (*system.Program, error) { return system.StartEdge(ctx, p, log.URL) }},
	} {
		begun := time.Now()
		s, err := service.start()
		if err != nil {
			return f, err
		}
		started[service.name] = s
		f.Add(service.name+"_start_s", time.Since(begun).Seconds())
		pids := []int{s.PID()}
		if err := measure.Quiet(ctx, pids); err != nil {
			return f, err
		}
		if err := f.AddResident(service.name, pids); err != nil {
			return f, err
		}
	}
	janitor, edge := started["janitor"].Janitor, started["edge"].Edge
	for _, request := range []struct{ metric, method, path string }{
		{"list_ms", http.MethodGet, "/v1/sessions?sort=bytes"},
		{"session_ms", http.MethodGet, "/v1/sessions/" + sharedSession(7)},
		{"limits_ms", http.MethodGet, "/v1/limits"},
		{"sweep_ms", http.MethodPost, "/v1/sweep"},
	} {
		var took []time.Duration
		for range 5 {
			begun := time.Now()
			if _, err := answerOf(ctx, request.method, janitor+request.path); err != nil {
				return f, err
			}
			took = append(took, time.Since(begun))
		}
		f.AddLatencies(request.metric+"_", took)
	}
	var took []time.Duration
	for range sharedReads {
		i, j := rand.IntN(sharedSessions), rand.IntN(sharedStreams) //nolint:gosec // which one does not matter
		begun := time.Now()
		body, err := answerOf(ctx, http.MethodGet, fmt.Sprintf("%s/v1/sessions/%s/streams/%d/events?from=earliest&limit=2", edge, sharedSession(i), j))
		if err != nil {
			return f, err
		}
		took = append(took, time.Since(begun))
		if n := strings.Count(body, `"id"`); n == 0 {
			return f, fmt.Errorf("a page is empty: %.200s", body)
		}
	}
	f.AddLatencies("page_ms_", took)
	err = f.AddResident("edge_then", []int{started["edge"].PID()})
	return f, err
}

// answerOf returns the answer to a request, which may take a minute, as JSON.
func answerOf(ctx context.Context, method, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", "application/json")
	return system.BodyOf(&http.Client{Timeout: time.Minute}, req)
}
