package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/sse"
)

const (
	latencyClients = 100
	latencyEvents  = 1000
	latencyEvery   = 5 * time.Millisecond
	latencySession = "bench"
	latencyBytes   = 512
)

// latency measures the time from just before a publish to the client that has the
// event, through Rejoin, through a raw broadcaster, and through JetStream alone.
func latency(ctx context.Context, p *programs) (figures, error) {
	var f figures
	s, err := start(ctx, p, "")
	if err != nil {
		return f, err
	}
	defer s.stop()
	path := "/v1/sessions/" + latencySession + "/streams/latency/events"
	all, err := measure(ctx, s.edge+path+"?from=now", func(n int) error { return post(ctx, s.edge+path, body(n)) })
	if err != nil {
		return f, err
	}
	f.addLatencies("", all)
	raw, err := newRaw()
	if err != nil {
		return f, err
	}
	defer raw.close()
	all, err = measure(ctx, raw.url, func(n int) error { raw.broadcast(sse.AppendEvent(nil, strconv.Itoa(n), "", body(n))); return nil })
	if err != nil {
		return f, err
	}
	f.addLatencies("raw_", all)
	all, err = jetStreamAlone(ctx, s.nats)
	if err != nil {
		return f, err
	}
	f.addLatencies("jetstream_", all)
	return f, nil
}

// body returns message n, padded to the size that is measured.
func body(n int) []byte {
	head := `{"jsonrpc":"2.0","method":"notifications/message","params":{"n":` + strconv.Itoa(n) + `,"pad":"`
	return []byte(head + strings.Repeat("x", latencyBytes-len(head)-3) + `"}}`)
}

func numberOf(data []byte) (int, error) {
	_, rest, ok := bytes.Cut(data, []byte(`"n":`))
	digits, _, ok2 := bytes.Cut(rest, []byte(","))
	if !ok || !ok2 {
		return 0, fmt.Errorf("not a message of the bench: %.60s", data)
	}
	return strconv.Atoi(string(digits))
}

// measure connects the clients, sends the events at a steady rate, and returns how
// long each took to each client. It fails when one is lost, doubled or out of order.
func measure(ctx context.Context, url string, send func(n int) error) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	sent := make([]time.Time, latencyEvents)
	var mu sync.Mutex // guards sent and all
	all := make([]time.Duration, 0, latencyClients*latencyEvents)
	var connected, done sync.WaitGroup
	errs := make(chan error, latencyClients)
	for range latencyClients {
		connected.Add(1)
		once := sync.OnceFunc(connected.Done)
		done.Go(func() {
			defer once()
			took, err := follow(ctx, url, once, func(n int) time.Time { mu.Lock(); defer mu.Unlock(); return sent[n] })
			if err != nil {
				errs <- err
				cancel()
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	connected.Wait()
	tick := time.NewTicker(latencyEvery)
	defer tick.Stop()
	for n := range latencyEvents {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		mu.Lock()
		sent[n] = time.Now()
		mu.Unlock()
		if err := send(n); err != nil {
			cancel()
			done.Wait()
			return nil, fmt.Errorf("publish %d: %w", n, err)
		}
	}
	done.Wait()
	select {
	case err := <-errs:
		return nil, err
	default:
		return all, nil
	}
}

// follow is one client.
func follow(ctx context.Context, url string, connected func(), sentAt func(n int) time.Time) ([]time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	dec := sse.NewDecoder(resp.Body, 1<<20)
	took := make([]time.Duration, 0, latencyEvents)
	for len(took) < latencyEvents {
		e, err := dec.Next()
		if err != nil {
			return nil, fmt.Errorf("after %d events: %w", len(took), err)
		}
		now := time.Now()
		switch e.Type {
		case "connect":
			connected()
		case "message":
			n, err := numberOf(e.Data)
			if err != nil {
				return nil, err
			}
			if n != len(took) {
				return nil, fmt.Errorf("got event %d, want %d", n, len(took))
			}
			took = append(took, now.Sub(sentAt(n)))
		case "gap":
			return nil, fmt.Errorf("gap: %s", e.Data)
		}
	}
	return took, nil
}

var publisher = &http.Client{Timeout: 10 * time.Second}

func post(ctx context.Context, url string, message []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(message))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := publisher.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return nil
}

// jetStreamAlone measures the log without Rejoin: publish with ack, one ordered consumer.
func jetStreamAlone(ctx context.Context, url string) ([]time.Duration, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	const session = "bench-alone"
	subject := event.Subject{Partition: event.Partition(session, 16), Session: session, Stream: "latency"}.String()
	consumer, err := js.OrderedConsumer(ctx, "MCP_"+strconv.Itoa(event.Partition(session, 16)), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	sent := make([]time.Time, latencyEvents)
	all := make([]time.Duration, 0, latencyEvents)
	finished := make(chan struct{})
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		now := time.Now()
		n, err := numberOf(m.Data())
		mu.Lock()
		defer mu.Unlock()
		if err == nil && len(all) < latencyEvents {
			if all = append(all, now.Sub(sent[n])); len(all) == latencyEvents {
				close(finished)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	defer consuming.Stop()
	tick := time.NewTicker(latencyEvery)
	defer tick.Stop()
	for n := range latencyEvents {
		<-tick.C
		mu.Lock()
		sent[n] = time.Now()
		mu.Unlock()
		if _, err := js.Publish(ctx, subject, body(n)); err != nil {
			return nil, err
		}
	}
	select {
	case <-finished:
		return all, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(30 * time.Second):
		return nil, fmt.Errorf("only %d of %d events came", len(all), latencyEvents)
	}
}

// raw is the limit of every server that writes to its clients one by one: it
// accepts, answers any request with the head of an event stream, and writes a
// prepared frame to every socket.
type raw struct {
	url   string
	ln    net.Listener
	mu    sync.Mutex
	conns []net.Conn
	done  sync.WaitGroup
}

func newRaw() (*raw, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		return nil, err
	}
	r := &raw{url: "http://" + ln.Addr().String() + "/", ln: ln}
	r.done.Go(r.accept)
	return r, nil
}

func (r *raw) accept() {
	for {
		c, err := r.ln.Accept()
		if err != nil {
			return
		}
		r.done.Go(func() {
			buf := make([]byte, 4096)
			for n := 0; !bytes.Contains(buf[:n], []byte("\r\n\r\n")); {
				m, err := c.Read(buf[n:])
				if err != nil {
					return
				}
				n += m
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\nevent: connect\ndata: {}\n\n"))
			r.conns = append(r.conns, c)
		})
	}
}

func (r *raw) broadcast(frame []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_, _ = c.Write(frame)
	}
}

func (r *raw) close() {
	_ = r.ln.Close()
	r.done.Wait()
	for _, c := range r.conns {
		_ = c.Close()
	}
}
