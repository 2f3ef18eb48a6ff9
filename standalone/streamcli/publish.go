package streamcli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"rejoin/shared/client"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/standalone/remote"
)

// PublishCLI holds the flags of "rejoin publish".
type PublishCLI struct {
	daemon.Config
	remote.Flags

	Session remote.Session `arg:"" help:"The session."`
	Stream  remote.Stream  `arg:"" help:"The stream."`
	Message []string       `arg:"" optional:"" help:"Messages to publish; without one, each line of standard input is a message."`
	Type    string         `env:"-" help:"SSE event type of the messages." placeholder:"TYPE"`
}

// Validate returns an error for a type that no message may have, and for an argument that is no message. Of
// standard input, empty lines are left out.
func (cli *PublishCLI) Validate() error {
	if cli.Type != "" {
		if err := event.CheckType(cli.Type); err != nil {
			return fmt.Errorf("--type: %w", err)
		}
	}
	for i, message := range cli.Message {
		if strings.TrimSpace(message) == "" {
			return fmt.Errorf("message %d is empty", i+1)
		}
	}
	return nil
}

const (
	// maxLine is the longest line, in bytes: a log may take messages of 31 MiB.
	maxLine = 32 << 20
	// maxBuffered has room for such a line while the one before is stored.
	maxBuffered = 2 * maxLine
)

// pending is a line that was published.
type pending struct {
	line   int
	result *client.Result
}

// tally counts the lines by outcome. It belongs to the goroutine of collect until that
// has ended.
type tally struct {
	stored, duplicates, refused int
	unknown                     int  // lines whose outcome is unknown
	rest                        int  // the first line that the interruption left without an outcome, or 0
	doubt                       bool // that line or a later one may be stored
}

// String returns the counts.
func (t tally) String() string {
	s := fmt.Sprintf("%d stored (%d duplicates), %d rejected", t.stored, t.duplicates, t.refused)
	if t.unknown > 0 {
		s += fmt.Sprintf(", %d unknown", t.unknown)
	}
	return s
}

// err reports whether the lines from rest on may be stored; nil if the interruption left no line without an outcome.
func (t tally) err() error {
	switch {
	case t.rest == 0:
		return nil
	case t.doubt:
		return fmt.Errorf("interrupted; line %d and later may not have been stored", t.rest)
	default:
		return fmt.Errorf("interrupted; line %d and later were not stored", t.rest)
	}
}

func (cli *PublishCLI) publish(ctx context.Context, in io.Reader, status io.Writer) error {
	token, err := cli.Token()
	if err != nil {
		return err
	}
	server := newReport(status, cli.Shown())
	defer server.stop()
	publisher, err := client.NewPublisher(client.PublisherConfig{URL: cli.URL, Token: token, OnFailure: server.failed, MaxBufferedBytes: maxBuffered})
	if err != nil {
		return err
	}
	queue := make(chan pending, client.DefaultMaxBufferedMessages)
	collected := make(chan tally, 1)
	go func() { collected <- cli.collect(ctx, publisher, queue, status, server) }()
	if len(cli.Message) > 0 {
		in = strings.NewReader(strings.Join(oneLine(cli.Message), "\n"))
	}
	refused, readErr := cli.read(ctx, in, publisher, queue, server)
	close(queue)
	t := <-collected
	closeErr := publisher.Close(ctx)
	t.refused += refused
	_, _ = fmt.Fprintln(status, t)
	err = cmp.Or(t.err(), readErr, closeErr)
	switch {
	case err == nil && t.refused > 0:
		err = fmt.Errorf("rejected: %d", t.refused)
	case err == nil && t.unknown > 0:
		err = fmt.Errorf("unknown outcome: %d", t.unknown)
	}
	return err
}

// oneLine returns messages without line breaks. Publishing reports those that are not JSON.
func oneLine(messages []string) []string {
	lines := make([]string, len(messages))
	for i, message := range messages {
		var b bytes.Buffer
		if json.Compact(&b, []byte(message)) == nil {
			message = b.String()
		}
		lines[i] = strings.ReplaceAll(message, "\n", " ")
	}
	return lines
}

// read publishes the lines, and returns how many were refused before they were sent.
func (cli *PublishCLI) read(ctx context.Context, in io.Reader, publisher *client.Publisher, queue chan<- pending, server *report) (refused int, err error) {
	lines, readErr := scan(ctx, in)
	for n := 1; ; n++ {
		var line []byte
		var more bool
		select {
		case line, more = <-lines:
		case <-ctx.Done():
			return refused, fmt.Errorf("interrupted at line %d", n)
		}
		if !more {
			if err := readErr(); errors.Is(err, bufio.ErrTooLong) {
				return refused, fmt.Errorf("line %d is longer than %d MiB", n, maxLine>>20)
			}
			return refused, readErr()
		}
		if len(line) == 0 {
			continue
		}
		result, err := publisher.Publish(ctx, client.Message{Session: string(cli.Session), Stream: string(cli.Stream), Type: cli.Type, Data: line})
		switch {
		case ctx.Err() != nil:
			return refused, fmt.Errorf("interrupted at line %d", n)
		case err != nil:
			refused++
			hint := ""
			if errors.Is(err, event.ErrInvalidJSON) && len(cli.Message) > 0 {
				hint = `; a string needs quotes that the shell keeps: '"hello"'`
			}
			server.say("line %d: %v%s", n, err, hint)
		default:
			server.asked()
			queue <- pending{n, result}
		}
	}
}

// scan returns the lines without the white space around them; err is valid once they are closed.
// A read of standard input cannot be interrupted: its goroutine ends with the read, or with the
// process.
func scan(ctx context.Context, in io.Reader) (lines <-chan []byte, err func() error) {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(make([]byte, 64<<10), maxLine)
	out := make(chan []byte)
	go func() {
		for scanner.Scan() && scanner.Err() == nil { // else it is the beginning of a line
			select {
			case out <- bytes.Clone(bytes.TrimSpace(scanner.Bytes())):
			case <-ctx.Done():
				return // not the end of the lines
			}
		}
		close(out)
	}()
	return out, func() error {
		if err := scanner.Err(); err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		return nil
	}
}

// collect waits for the outcomes of the published lines, in order. When ctx ends, it closes
// the publisher, so that each line has an outcome and read is not held up by a full queue.
func (cli *PublishCLI) collect(ctx context.Context, publisher *client.Publisher, queue <-chan pending, status io.Writer, server *report) (t tally) {
	begun, told, progress := time.Now(), time.Now(), daemon.IsTerminal(status)
	for p := range queue {
		stored, err := p.result.Wait(ctx)
		if ctx.Err() != nil {
			_ = publisher.Close(ctx) // ctx's end, which publish reports
			stored, err = p.result.Wait(context.WithoutCancel(ctx))
		}
		switch {
		case errors.Is(err, client.ErrClosed):
			t.rest = cmp.Or(t.rest, p.line)
			t.doubt = t.doubt || errors.Is(err, client.ErrUnknown)
		case err != nil:
			if errors.Is(err, client.ErrUnknown) {
				t.unknown++ // the error that comes with it is of an attempt that failed
			} else {
				t.refused++
				if _, refused := errors.AsType[*client.Error](err); refused {
					server.answers()
				}
			}
			_, _ = fmt.Fprintf(status, "line %d: %v\n", p.line, cli.Hint(err))
		default:
			server.answers()
			t.stored++
			t.doubt = t.doubt || t.rest > 0
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
