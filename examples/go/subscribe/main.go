// Command subscribe prints the messages of a stream, each once, over restarts of Rejoin and
// of itself.
//
//	go run rejoin/examples/go/subscribe demo main place.txt
//
// The file holds the cursor after the last processed event. REJOIN_URL is the address of
// Rejoin, REJOIN_TOKEN is a bearer token.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"rejoin/shared/client"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: subscribe SESSION STREAM FILE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "subscribe:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to be stopped
	}
}

// run returns when the stream is closed and all its events were processed.
func run(ctx context.Context, session, stream, file string) error {
	place, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	subscriber, err := client.NewSubscriber(client.SubscriberConfig{
		URL:       cmp.Or(os.Getenv("REJOIN_URL"), "http://127.0.0.1:8080"),
		Session:   session,
		Stream:    stream,
		After:     string(place),
		Cursors:   true, // a quiet stream's cursor moves, too
		Token:     token,
		OnFailure: func(err error) { fmt.Fprintf(os.Stderr, "%v; trying again\n", err) },
	})
	if err != nil {
		return err
	}
	for e, err := range subscriber.Events(ctx) {
		if err != nil {
			return err // refused for good, or ctx has ended
		}
		switch e.Kind {
		case client.KindMessage:
			fmt.Println(e.ID, e.Type, string(e.Message))
		case client.KindGap:
			// The missed events have to come from somewhere else: ask the service that has the whole state.
			fmt.Fprintln(os.Stderr, "events are missing:", e.Gap.Reason)
		case client.KindCursor:
		}
		if err := save(file, e.Cursor); err != nil { // after the event is processed, never before
			return err
		}
	}
	return nil
}

// save replaces the file as a whole, so that a crash leaves the old cursor.
func save(file, place string) error {
	if err := os.WriteFile(file+".new", []byte(place), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// token is called before each connection. Where tokens expire, it gets a new one.
func token(context.Context) (string, error) { return os.Getenv("REJOIN_TOKEN"), nil }
