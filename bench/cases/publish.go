package cases

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
	"rejoin/shared/event"
)

const (
	publishClients = 64
	publishTime    = 5 * time.Second
	publishStreams = 640 // in 64 sessions
	ndjsonMessages = 200_000
	ndjsonBytes    = 1 << 30
)

// publish measures ingest: 64 clients that publish one message in a request and wait
// for the answer, beside a handler that does nothing; messages in NDJSON, beside
// publishing straight to JetStream; and the memory that 1 GiB of NDJSON takes.
func publish(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	bare, err := bareRate(ctx)
	if err != nil {
		return f, err
	}
	f.Add("bare_per_s", bare)
	// The messages published in less than the time in which a janitor deletes have to fit into a partition.
	r, err := system.StartRejoin(ctx, p, "", "--max-bytes=32GiB")
	if err != nil {
		return f, err
	}
	defer r.Close()
	addr := strings.TrimPrefix(r.Edge, "http://")
	single, err := publishRate(ctx, addr)
	if err != nil {
		return f, err
	}
	f.Add("per_s", single)
	direct, err := directRate(ctx, r, true)
	if err != nil {
		return f, err
	}
	f.Add("direct_per_s", direct)
	unfenced, err := directRate(ctx, r, false)
	if err != nil {
		return f, err
	}
	f.Add("unfenced_per_s", unfenced)
	lines, err := ndjsonRate(ctx, addr)
	if err != nil {
		return f, err
	}
	f.Add("ndjson_per_s", lines)
	mb, err := ndjsonMemory(ctx, p, r)
	if err != nil {
		return f, err
	}
	f.Add("ndjson_resident_mb", mb)
	f.Ratio("vs_bare", "per_s", "bare_per_s")
	f.Ratio("ndjson_vs_direct", "ndjson_per_s", "direct_per_s")
	return f, nil
}

func bareRate(ctx context.Context) (float64, error) {
	addr, stop, err := system.StartFiber(ctx)
	if err != nil {
		return 0, err
	}
	defer stop()
	return publishRate(ctx, addr)
}

// publishRate returns how many messages a second are answered 201.
func publishRate(ctx context.Context, addr string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	var answered atomic.Int64
	errs := make([]error, publishClients)
	var clients sync.WaitGroup
	start := time.Now()
	for i := range publishClients {
		clients.Go(func() { errs[i] = publishInTurn(ctx, addr, i, &answered) })
	}
	clients.Wait()
	return float64(answered.Load()) / time.Since(start).Seconds(), errors.Join(errs...)
}

// publishInTurn publishes one message after the other on a connection, to ten streams.
func publishInTurn(ctx context.Context, addr string, client int, answered *atomic.Int64) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for n := 0; ctx.Err() == nil; n++ {
		if _, err := conn.Write(publishRequest(addr, client*publishStreams/publishClients+n%10, "application/json", load.Stamped(n, load.MessageBytes))); err != nil {
			return err
		}
		if err := created(in); err != nil {
			return err
		}
		answered.Add(1)
	}
	return nil
}

func publishRequest(addr string, stream int, kind string, body []byte) []byte {
	b := fmt.Appendf(nil, "POST /v1/sessions/%s/streams/%d/events HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n",
		load.SessionOf(stream), stream, addr, kind, len(body))
	return append(b, body...)
}

// created reads an answer, which must be 201. It does no more than it must.
func created(in *bufio.Reader) error {
	length := 0
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		switch {
		case err != nil:
			return err
		case first && !bytes.HasPrefix(line, []byte("HTTP/1.1 201")):
			rest, _ := in.Peek(in.Buffered())
			return fmt.Errorf("the answer is %s %s", bytes.TrimSpace(line), rest)
		case bytes.HasPrefix(line, []byte("Content-Length: ")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len("Content-Length: "):]))); err != nil {
				return err
			}
		case len(bytes.TrimSpace(line)) == 0:
			_, err := in.Discard(length)
			return err
		}
	}
}

// directRate returns how many messages a second are acknowledged when they are published straight
// to one stream of the log: as docs/publishing.md has it, or, as is not allowed, without a fence.
func directRate(ctx context.Context, r *system.Rejoin, fenced bool) (float64, error) {
	session := load.SessionOf(publishStreams)
	fence := event.Subject{Partition: event.Partition(session, load.Partitions), Session: session, Life: oneLife, Stream: strconv.Itoa(publishStreams), Kind: event.End}
	start := time.Now()
	for n := range ndjsonMessages {
		msg := &nats.Msg{Subject: load.SubjectOf(publishStreams), Data: load.Stamped(n, load.MessageBytes)}
		if fenced {
			msg.Header = nats.Header{jetstream.ExpectedLastSubjSeqHeader: {"0"}, jetstream.ExpectedLastSubjSeqSubjHeader: {fence.String()}}
		}
		if _, err := r.Store(ctx, msg); err != nil {
			return 0, err
		}
	}
	err := r.Flush(ctx)
	return ndjsonMessages / time.Since(start).Seconds(), err
}

// ndjsonRate does the same with one request to ingest.
func ndjsonRate(ctx context.Context, addr string) (float64, error) {
	start := time.Now()
	err := postLines(ctx, addr, publishStreams+1, ndjsonMessages)
	return ndjsonMessages / time.Since(start).Seconds(), err
}

// postLines publishes messages as NDJSON in one request, of no announced length.
func postLines(ctx context.Context, addr string, stream, messages int) error {
	body, w := io.Pipe()
	go func() {
		out := bufio.NewWriterSize(w, 64<<10)
		for n := range messages {
			_, _ = out.Write(append(load.Stamped(n, load.MessageBytes), '\n')) // Flush fails as well
		}
		_ = w.CloseWithError(out.Flush())
	}()
	defer func() { _ = body.Close() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+load.EventsPath(stream), body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	resp, err := (&http.Transport{DisableKeepAlives: true, WriteBufferSize: 64 << 10}).RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && !bytes.Contains(answer, fmt.Appendf(nil, `"accepted":%d,"duplicates":0,"refused":0,"unknown":0`, messages)) {
		err = fmt.Errorf("the answer is %s: %.500s", resp.Status, answer)
	}
	return err
}

// ndjsonMemory returns the most resident memory, in MiB, that an ingest of its own had
// while it took 1 GiB of NDJSON.
func ndjsonMemory(ctx context.Context, p *system.Programs, r *system.Rejoin) (float64, error) {
	in, err := system.StartIngest(ctx, p, r.NATS)
	if err != nil {
		return 0, err
	}
	defer in.Stop()
	if err := postLines(ctx, in.Ingest, publishStreams+2, ndjsonBytes/load.MessageBytes); err != nil {
		return 0, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", in.PID()))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(status), "\nVmHWM:")
	if !ok {
		return 0, errors.New("the ingest has no resident memory")
	}
	kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	return kb / 1024, err
}
