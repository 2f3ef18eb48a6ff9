// Command direct is a trusted service that publishes straight to JetStream, without
// ingest and without a line of Rejoin's code: each line of standard input becomes an
// event. See docs/publishing.md.
//
//	echo '{"order":17}' | go run rejoin/examples/direct -session demo -stream main
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/nats-io/nats.go"
)

func main() {
	url := flag.String("nats", nats.DefaultURL, "URL of the NATS `server`")
	session := flag.String("session", "demo", "session to publish to")
	stream := flag.String("stream", "main", "stream to publish to")
	kind := flag.String("type", "", "SSE event `type`, if not message")
	key := flag.String("key", rand.Text(), "idempotency keys are this and the number of the line")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it, also while it waits for a line
	if err := run(ctx, *url, event{session: *session, stream: *stream, kind: *kind, key: *key}, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "direct:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to be stopped
	}
}

// run publishes the lines of in, one after the other, which keeps their order.
func run(ctx context.Context, url string, e event, in io.Reader, out io.Writer) error {
	p, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer p.nc.Close()
	prefix, n := e.key, 0
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 32<<20)
	for lines.Scan() {
		n++
		if e.data = bytes.TrimSpace(lines.Bytes()); len(e.data) == 0 {
			continue
		}
		e.key = fmt.Sprintf("%s-%d", prefix, n)
		ack, err := p.publish(ctx, e)
		if err != nil {
			return fmt.Errorf("line %d: %w; the key is %s", n, err, prefix)
		}
		if _, err := fmt.Fprintf(out, "%s %d duplicate=%t\n", ack.Stream, ack.Sequence, ack.Duplicate); err != nil {
			return err
		}
	}
	return lines.Err()
}
