// Command publish sends the lines of standard input, each one JSON message, in batches,
// and prints the event ID of each.
//
//	echo '{"order":17}' | go run rejoin/examples/go/publish demo main
//
// REJOIN_URL is the address of Rejoin, REJOIN_TOKEN is a bearer token.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"rejoin/shared/client"
)

func main() {
	key := flag.String("key", rand.Text(), "idempotency keys are this and the number of the line")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: publish [-key=KEY] SESSION STREAM")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it, also while it waits for a line
	if err := run(ctx, flag.Arg(0), flag.Arg(1), *key, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "publish: %v; the key is %s\n", err, *key)
		os.Exit(1) //nolint:gocritic // nothing is left to be stopped
	}
}

func run(ctx context.Context, session, stream, key string, in io.Reader, out io.Writer) error {
	publisher, err := client.NewPublisher(client.PublisherConfig{
		URL:   cmp.Or(os.Getenv("REJOIN_URL"), "http://127.0.0.1:8080"),
		Token: token,
	})
	if err != nil {
		return err
	}
	// After an interruption Close gives each message an outcome, so that tell waits for no other.
	defer context.AfterFunc(ctx, func() { _ = publisher.Close(ctx) })()
	// The publisher repeats unanswered messages under the same keys, in the order of the
	// calls of Publish. Publish itself waits only while the publisher's buffer is full.
	results := make(chan *client.Result, 1000)
	told := make(chan error, 1)
	go func() { told <- tell(results, out) }()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 4<<20)
	for n := 0; err == nil && lines.Scan(); {
		if message := bytes.TrimSpace(lines.Bytes()); len(message) > 0 {
			n++
			var result *client.Result
			result, err = publisher.Publish(ctx, client.Message{Session: session, Stream: stream, Data: message, Key: fmt.Sprintf("%s-%d", key, n)})
			if err == nil {
				results <- result
			}
		}
	}
	close(results)
	return errors.Join(err, lines.Err(), <-told, publisher.Close(ctx)) // Close waits for the pending messages
}

// tell prints the outcome of each message.
func tell(results <-chan *client.Result, out io.Writer) (err error) {
	for result := range results {
		stored, failure := result.Wait(context.Background())
		switch {
		case errors.Is(failure, client.ErrUnknown):
			err = errors.Join(err, fmt.Errorf("it may be stored or not: %w", failure))
		case failure != nil:
			err = errors.Join(err, fmt.Errorf("not stored: %w", failure))
		default:
			if _, failure := fmt.Fprintf(out, "%s duplicate=%t\n", stored.ID, stored.Duplicate); failure != nil {
				err = errors.Join(err, failure)
			}
		}
	}
	return err
}

// token is called before each request. Where tokens expire, it gets a new one.
func token(context.Context) (string, error) { return os.Getenv("REJOIN_TOKEN"), nil }
