package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"rejoin/shared/clocks"
	"rejoin/shared/must"
)

// roundTrip is a transport that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// publisherAhead returns a publisher whose wall clock is ahead by so many nanoseconds.
func publisherAhead(t *testing.T, transport http.RoundTripper, ahead *atomic.Int64) *Publisher {
	t.Helper()
	p := must.Value(NewPublisher(PublisherConfig{URL: "http://ingest", HTTPClient: &http.Client{Transport: transport}}))(t)
	p.now = clocks.New(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	return p
}

// A machine may be suspended after a repetition has begun and before it is sent.
func TestPublisher_SuspendedWithinARepetition(t *testing.T) {
	for _, byTransport := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var suspended atomic.Int64
			attempts := 0
			transport := roundTrip(func(r *http.Request) (*http.Response, error) {
				attempts++
				httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
				body := r.Body
				if byTransport {
					body, _ = r.GetBody()
				} else if attempts == 1 {
					return nil, io.ErrUnexpectedEOF
				}
				suspended.Store(int64(10 * time.Minute))
				if sent, err := io.ReadAll(body); err == nil {
					t.Errorf("%q is sent after the log has forgotten its key", sent)
				}
				return nil, io.ErrUnexpectedEOF
			})
			p := publisherAhead(t, transport, &suspended)
			if _, err := p.PublishAndWait(t.Context(), Message{Session: "demo", Stream: "main", Data: []byte("1")}); !errors.Is(err, ErrUnknown) {
				t.Errorf("error is %v", err)
			}
			must.NoError(t, p.Close(context.Background()))
		})
	}
}

// The log forgets a key while the machine is suspended, so that timers and the monotonic clock stand
// still, and also when the wall clock is set back after an attempt whose outcome is unknown.
func TestPublisher_ClockJumps(t *testing.T) {
	for name, tt := range map[string]struct {
		wall     time.Duration // how far each attempt sets the wall clock
		attempts func(int) bool
	}{
		"suspended": {10 * time.Minute, func(n int) bool { return n == 1 }},
		"set back":  {-time.Hour, func(n int) bool { return n > 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var set atomic.Int64
				attempts := 0
				transport := roundTrip(func(r *http.Request) (*http.Response, error) {
					attempts++
					httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
					set.Add(int64(tt.wall))
					return nil, io.ErrUnexpectedEOF
				})
				p := publisherAhead(t, transport, &set)
				begun := time.Now()
				_, err := p.PublishAndWait(t.Context(), Message{Session: "demo", Stream: "main", Data: []byte("1")})
				if took := time.Since(begun); !errors.Is(err, ErrUnknown) || !tt.attempts(attempts) || took > 2*time.Minute {
					t.Errorf("error is %v after %d attempts and %s", err, attempts, took)
				}
				must.NoError(t, p.Close(context.Background()))
			})
		})
	}
}

// watched counts the functions that wait for its end.
type watched struct {
	context.Context
	waiting atomic.Int64
}

func (w *watched) Value(any) any { return nil } // or package context would wait by itself

func (w *watched) AfterFunc(f func()) func() bool {
	w.waiting.Add(1)
	stop := context.AfterFunc(w.Context, f)
	return func() bool {
		w.waiting.Add(-1)
		return stop()
	}
}

// A publisher may run for months: a request, first or repeated, leaks nothing.
func TestPublisher_RequestsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		p := publisherAhead(t, roundTrip(func(r *http.Request) (*http.Response, error) {
			if attempts++; attempts < 5 {
				httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
				return nil, io.ErrUnexpectedEOF
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"index":0,"id":"a"}` + "\n" + `{"accepted":1}` + "\n"))}, nil
		}), &atomic.Int64{})
		life := &watched{Context: p.ctx}
		p.ctx = life
		_, err := p.PublishAndWait(t.Context(), Message{Session: "demo", Stream: "main", Data: []byte("1")})
		synctest.Wait()
		if waiting := life.waiting.Load(); err != nil || attempts != 5 || waiting != 0 {
			t.Errorf("error is %v after %d attempts, of which %d are left", err, attempts, waiting)
		}
		must.NoError(t, p.Close(context.Background()))
	})
}

// Flush waits for the messages in the queue, so an outcome is set before the queue is seen without its message.
func TestFlush_WaitsForOutcomesOfAnswers(t *testing.T) {
	p := publisherAhead(t, nil, &atomic.Int64{})
	l := &lane{publisher: p}
	const messages = 100_000 // their outcomes take longer than the loop below waits for a look
	p.buffer = newBuffer(messages, 1)
	for range messages {
		must.NoError(t, p.buffer.take(t.Context(), 0))
		l.queue = append(l.queue, &entry{result: &Result{done: make(chan struct{})}})
	}
	batch := slices.Clone(l.queue)
	var lane sync.WaitGroup
	lane.Go(func() { l.takeOut(batch, slices.Repeat([]verdict{{kind: stored}}, len(batch))) })
	for taken := false; !taken; {
		p.mu.Lock()
		taken = len(l.queue) == 0
		select {
		case <-batch[len(batch)-1].result.done:
		default:
			if taken {
				t.Error("the queue is empty, and a message has no outcome")
			}
		}
		p.mu.Unlock()
	}
	lane.Wait()
}

// A server that takes long for the body of a request is not silent.
func TestPublisher_SlowUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		p := publisherAhead(t, roundTrip(func(r *http.Request) (*http.Response, error) {
			attempts++
			for part := make([]byte, 20); ; {
				time.Sleep(DefaultAnswerTimeout - 1)
				if err := r.Context().Err(); err != nil {
					return nil, err
				}
				if _, err := r.Body.Read(part); err == io.EOF {
					return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"index":0,"id":"a"}` + "\n" + `{"accepted":1}` + "\n"))}, nil
				}
			}
		}), &atomic.Int64{})
		_, err := p.PublishAndWait(t.Context(), Message{Session: "demo", Stream: "main", Data: []byte("1"), Key: "a key"})
		if err != nil || attempts != 1 {
			t.Errorf("error is %v after %d attempts", err, attempts)
		}
		must.NoError(t, p.Close(context.Background()))
	})
}

// An answer that has reported all outcomes need not end.
func TestPublisher_AnswerWithoutAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := publisherAhead(t, roundTrip(func(r *http.Request) (*http.Response, error) {
			body, server := io.Pipe()
			go func() {
				_, _ = io.WriteString(server, `{"index":0,"id":"a"}`+"\n"+`{"accepted":1}`+"\n")
				for r.Context().Err() == nil {
					time.Sleep(drainTimeout / 2)
					_, _ = server.Write([]byte("\n"))
				}
				_ = server.Close()
			}()
			return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
		}), &atomic.Int64{})
		begun := time.Now()
		_, err := p.PublishAndWait(t.Context(), Message{Session: "demo", Stream: "main", Data: []byte("1")})
		if took := time.Since(begun); err != nil || took > 2*drainTimeout {
			t.Errorf("error is %v after %s", err, took)
		}
		must.NoError(t, p.Close(context.Background()))
	})
}

// A transport that does not report connections (net/http/httptrace), as that of js/wasm, may have sent the bytes that
// it has read, and no others.
func TestPublisher_TransportWithoutTrace(t *testing.T) {
	for name, tt := range map[string]struct {
		reads bool
		want  error
	}{"reads": {true, ErrUnknown}, "does not read": {false, context.DeadlineExceeded}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				transport := roundTrip(func(r *http.Request) (*http.Response, error) {
					if tt.reads {
						_, _ = io.ReadAll(r.Body)
					}
					return nil, io.ErrUnexpectedEOF
				})
				p := publisherAhead(t, transport, &atomic.Int64{})
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				if _, err := p.PublishAndWait(ctx, Message{Session: "demo", Stream: "main", Data: []byte("1")}); !errors.Is(err, tt.want) {
					t.Errorf("error is %v, want %v", err, tt.want)
				}
				_ = p.Close(ctx) // the message that was not sent is left
			})
		})
	}
}
