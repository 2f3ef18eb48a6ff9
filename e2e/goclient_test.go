package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	rejoin "rejoin/shared/client"
	"rejoin/shared/waittest"
)

// What a publisher was told to be stored is there once, and what it published comes in
// its order, whatever happens to ingest, the log and the edge meanwhile: all of them end
// with the program here.
func TestGoClient_ProgramIsKilled(t *testing.T) {
	t.Parallel()
	const streams, messages, kills = 3, 6000, 3
	p := startProc(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*waittest.Timeout)
	defer cancel()
	publisher, err := rejoin.NewPublisher(rejoin.PublisherConfig{URL: p.api(), MaxBatchMessages: 50, MaxBufferedMessages: 300, MaxRetry: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	published := make(chan error, 1)
	stored := make([][]string, streams) // the IDs, in the order of publishing
	// It holds few, and so publishing is not through before the last kill, however late that is.
	progress := make(chan struct{}, messages/(kills+1)/4)
	go func() { published <- publishAll(ctx, publisher, stored, messages, progress) }()

	got := make([]chan error, streams)
	for i := range streams {
		got[i] = make(chan error, 1)
		go func() { got[i] <- receiveAll(ctx, p.api(), i, messages/streams) }()
	}
	for range kills {
		for range messages / (kills + 1) {
			select {
			case <-progress:
			case err := <-published:
				t.Fatalf("publishing ended: %v", err)
			}
		}
		p.kill()
		p.start()
	}
	for goesOn := true; goesOn; {
		select {
		case <-progress:
		case err := <-published:
			if goesOn = false; err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := publisher.Close(ctx); err != nil {
		t.Error(err)
	}
	for i := range streams {
		if err := <-got[i]; err != nil {
			t.Errorf("stream %d: %v", i, err)
		}
		last := uint64(0)
		for n, id := range stored[i] {
			at := sequenceOf(t, id)
			if at <= last {
				t.Errorf("stream %d: message %d is stored at %d, behind one at %d", i, n, at, last)
			}
			last = at
		}
	}
}

// publishAll publishes messages to the streams in turn, tells of each that is stored,
// and fills in their IDs. It continues as far as it is heard.
func publishAll(ctx context.Context, publisher *rejoin.Publisher, stored [][]string, messages int, progress chan<- struct{}) error {
	results := make(chan *rejoin.Result, cap(progress))
	failed := make(chan error, 1)
	go func() {
		n := 0
		for r := range results {
			s, err := r.Wait(ctx)
			if err != nil {
				failed <- fmt.Errorf("message %d: %w", n, err)
				return
			}
			stored[n%len(stored)] = append(stored[n%len(stored)], s.ID)
			select {
			case progress <- struct{}{}:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
			n++
		}
		failed <- nil
	}()
	for n := range messages {
		r, err := publisher.Publish(ctx, rejoin.Message{Session: "client", Stream: fmt.Sprint(n % len(stored)), Data: []byte(numbered(n / len(stored)))})
		if err != nil {
			return err
		}
		select {
		case results <- r:
		case err := <-failed:
			return err
		}
	}
	close(results)
	return <-failed
}

// receiveAll follows a stream until it has so many messages, which must come in order.
func receiveAll(ctx context.Context, url string, stream, messages int) error {
	subscriber, err := rejoin.NewSubscriber(rejoin.SubscriberConfig{URL: url, Session: "client", Stream: fmt.Sprint(stream), MaxRetry: 200 * time.Millisecond})
	if err != nil {
		return err
	}
	n := 0
	for e, err := range subscriber.Events(ctx) {
		switch {
		case err != nil:
			return err
		case e.Kind != rejoin.KindMessage:
			return fmt.Errorf("after %d messages: %+v", n, e)
		case string(e.Message) != numbered(n):
			return fmt.Errorf("message %d is %s", n, e.Message)
		}
		if n++; n == messages {
			return nil
		}
	}
	return fmt.Errorf("it ended after %d messages", n)
}
