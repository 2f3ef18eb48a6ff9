package streamcli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"rejoin/shared/client"
	"rejoin/shared/daemon"
	"rejoin/standalone/remote"
)

// PublishCLI holds the flags of "rejoin publish".
type PublishCLI struct {
	daemon.Config
	remote.Flags

	Session remote.Session `arg:"" help:"The session."`
	Stream  remote.Stream  `arg:"" help:"The stream."`
	Type    string         `env:"-" help:"SSE event type of the messages." placeholder:"TYPE"`
}

// maxLine is the longest line, in bytes: a log may take messages of 31 MiB.
const maxLine = 32 << 20

// pending is a line that was published.
type pending struct {
	line   int
	result *client.Result
}

// tally counts what became of the lines. It belongs to the goroutine of settle until
// that has ended.
type tally struct {
	stored, duplicates, refused int
	err                         error // why the rest was not awaited
}

func (cli *PublishCLI) publish(ctx context.Context, in io.Reader, status io.Writer) error {
	token, err := cli.Token()
	if err != nil {
		return err
	}
	publisher, err := client.NewPublisher(client.PublisherConfig{URL: cli.URL, Token: token})
	if err != nil {
		return err
	}
	queue := make(chan pending, client.DefaultMaxBufferedMessages)
	settled := make(chan tally, 1)
	go func() { settled <- settle(ctx, queue, status, daemon.IsTerminal(status)) }()
	refused, readErr := cli.read(ctx, in, publisher, queue, status)
	close(queue)
	t := <-settled
	closeErr := publisher.Close(ctx)
	t.refused += refused
	_, _ = fmt.Fprintf(status, "%d stored (%d duplicates), %d rejected\n", t.stored, t.duplicates, t.refused)
	switch {
	case readErr != nil:
		return readErr
	case t.err != nil:
		return t.err
	case closeErr != nil:
		return closeErr
	case t.refused > 0:
		return fmt.Errorf("%d messages were rejected", t.refused)
	}
	return nil
}

// read publishes the lines, and returns how many were refused before they were sent.
func (cli *PublishCLI) read(ctx context.Context, in io.Reader, publisher *client.Publisher, queue chan<- pending, status io.Writer) (refused int, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		result, err := publisher.Publish(ctx, client.Message{Session: string(cli.Session), Stream: string(cli.Stream), Type: cli.Type, Data: line})
		switch {
		case ctx.Err() != nil:
			return refused, fmt.Errorf("interrupted at line %d", n)
		case err != nil:
			refused++
			_, _ = fmt.Fprintf(status, "line %d: %v\n", n, err)
		default:
			queue <- pending{n, result}
		}
	}
	if err := lines.Err(); err != nil {
		return refused, fmt.Errorf("standard input: %w", err)
	}
	return refused, nil
}

// settle waits for what was published, in order.
func settle(ctx context.Context, queue <-chan pending, status io.Writer, progress bool) (t tally) {
	begun, told := time.Now(), time.Now()
	for p := range queue {
		if t.err != nil {
			continue
		}
		stored, err := p.result.Wait(ctx)
		switch {
		case ctx.Err() != nil:
			t.err = fmt.Errorf("interrupted; line %d and later may not have been stored", p.line)
		case err != nil:
			t.refused++
			_, _ = fmt.Fprintf(status, "line %d: %v\n", p.line, err)
		default:
			t.stored++
			if stored.Duplicate {
				t.duplicates++
			}
		}
		if progress && time.Since(told) > time.Second/2 {
			told = time.Now()
			_, _ = fmt.Fprintf(status, "\r%d stored, %.0f/s ", t.stored, float64(t.stored)/time.Since(begun).Seconds())
		}
	}
	if progress {
		_, _ = fmt.Fprint(status, "\r")
	}
	return t
}
