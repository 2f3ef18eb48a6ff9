package cases

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
	goclient "rejoin/shared/client"
)

const (
	clientMessages = 200_000
	clientStreams  = 64
	clientReads    = 8
	// clientRetained is the number of messages for a reader: it fits into the window of a partition.
	clientRetained = clientMessages / clientReads
)

// goClient measures the Go client: a publisher on one stream and on 64, beside one
// request with the same messages as NDJSON; and a subscriber of the events in the window,
// beside a reader that only counts lines.
func goClient(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	r, err := system.StartRejoin(ctx, p, "", system.FollowAll, "--max-events-per-stream=-1", "--max-events-per-session=-1", "--max-bytes-per-session=-1")
	if err != nil {
		return f, err
	}
	defer r.Close()
	retained := clientStreams // the stream after the published ones
	for _, m := range []struct {
		metric  string
		measure func() (float64, error)
	}{
		{"ndjson_per_s", func() (float64, error) { return ndjsonRate(ctx, strings.TrimPrefix(r.Edge, "http://")) }},
		{"stream_per_s", func() (float64, error) { return publisherRate(ctx, r.Edge, 0, 1, clientMessages) }},
		{"streams_per_s", func() (float64, error) { return publisherRate(ctx, r.Edge, 0, clientStreams, clientMessages) }},
		{"plain_read_per_s", func() (float64, error) {
			if _, err := publisherRate(ctx, r.Edge, retained, 1, clientRetained); err != nil {
				return 0, err
			}
			return readRate(func() error { return readPlainly(ctx, r.Edge, retained) })
		}},
		{"read_per_s", func() (float64, error) {
			return readRate(func() error { return readWithClient(ctx, r.Edge, retained) })
		}},
	} {
		rate, err := m.measure()
		if err != nil {
			return f, fmt.Errorf("%s: %w", m.metric, err)
		}
		f.Add(m.metric, rate)
	}
	f.Ratio("stream_vs_ndjson", "stream_per_s", "ndjson_per_s")
	f.Ratio("read_vs_plain", "read_per_s", "plain_read_per_s")
	return f, nil
}

// publisherRate returns how many messages a second are acknowledged to a publisher, on
// some streams from the first one on.
func publisherRate(ctx context.Context, url string, first, streams, messages int) (float64, error) {
	publisher, err := goclient.NewPublisher(goclient.PublisherConfig{URL: url})
	if err != nil {
		return 0, err
	}
	defer func() { _ = publisher.Close(ctx) }()
	results := make(chan *goclient.Result, goclient.DefaultMaxBufferedMessages)
	waited := make(chan error, 1)
	go func() {
		var failed error
		for r := range results {
			if _, err := r.Wait(ctx); err != nil {
				failed = err
			}
		}
		waited <- failed
	}()
	start := time.Now()
	for n := range messages {
		stream := first + n%streams
		var r *goclient.Result
		r, err = publisher.Publish(ctx, goclient.Message{Session: load.SessionOf(stream), Stream: strconv.Itoa(stream), Data: load.Stamped(n, load.MessageBytes)})
		if err != nil {
			break
		}
		results <- r
	}
	close(results)
	err = errors.Join(err, <-waited)
	return float64(messages) / time.Since(start).Seconds(), err
}

// readRate returns how many messages a second are read when the retained messages are
// read several times.
func readRate(read func() error) (float64, error) {
	start := time.Now()
	for range clientReads {
		if err := read(); err != nil {
			return 0, err
		}
	}
	return clientReads * clientRetained / time.Since(start).Seconds(), nil
}

func readWithClient(ctx context.Context, url string, stream int) error {
	subscriber, err := goclient.NewSubscriber(goclient.SubscriberConfig{URL: url, Session: load.SessionOf(stream), Stream: strconv.Itoa(stream)})
	if err != nil {
		return err
	}
	n := 0
	for e, err := range subscriber.Events(ctx) {
		if err == nil && e.Kind != goclient.KindMessage {
			err = fmt.Errorf("got %+v", e)
		}
		if err != nil {
			return err
		}
		if n++; n == clientRetained {
			break
		}
	}
	return nil
}

func readPlainly(ctx context.Context, url string, stream int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+load.EventsPath(stream), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	n := -1 // the first data is connect's
	for in := bufio.NewReaderSize(resp.Body, 64<<10); n < clientRetained; {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if strings.HasPrefix(string(line), "data: ") {
			n++
		}
	}
	return nil
}
