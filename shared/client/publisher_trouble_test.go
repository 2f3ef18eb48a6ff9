package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/client"
	"rejoin/shared/must"
)

// TestPublisher_Retries has one fault before everything is good again. Each must end
// with three messages stored, once and in order.
func TestPublisher_Retries(t *testing.T) {
	head := len("POST " + mainPath + "?results=each HTTP/1.1\r\n")
	for name, tt := range map[string]struct {
		request    ingestFault
		connection connFault
	}{
		"connection refused":           {connection: connFault{Refused: true}},
		"cut in the request's head":    {connection: connFault{CutRead: head}},
		"cut in the request's body":    {connection: connFault{CutRead: head + 350}},
		"cut before the answer":        {connection: connFault{CutWrite: 1}},
		"cut in the answer":            {connection: connFault{CutWrite: 250}},
		"503 with Retry-After":         {request: ingestFault{Status: 503, Code: "unavailable", RetryAfter: 3}},
		"storage full":                 {request: ingestFault{Status: 503, Code: "storage_full", RetryAfter: 30}},
		"unknown":                      {request: ingestFault{Status: 503, Code: "publish_unknown", Lost: true}},
		"a token that is refused":      {request: ingestFault{Status: 401, Code: "unauthorized"}},
		"429":                          {request: ingestFault{Status: 429}},
		"hung up":                      {request: ingestFault{HangUp: true}},
		"hung up, and it is in":        {request: ingestFault{HangUp: true, Lost: true}},
		"a proxy's 502":                {request: ingestFault{Status: 502}},
		"a proxy's 202, and it is in":  {request: ingestFault{Status: 202, Lost: true}},
		"a proxy's 504, and it is in":  {request: ingestFault{Status: 504, Lost: true}},
		"a redirect to no address":     {request: ingestFault{Status: 302, Lost: true}},
		"stopped in the middle":        {request: ingestFault{StopAt: 2, StopCode: "unavailable", Untried: true}},
		"stopped at the first":         {request: ingestFault{StopAt: 1, StopCode: "unavailable"}},
		"storage full in the middle":   {request: ingestFault{StopAt: 2, StopCode: "storage_full"}},
		"unknown and stored":           {request: ingestFault{StopAt: 2, StopCode: "publish_unknown", Stored: true}},
		"unknown and not stored":       {request: ingestFault{StopAt: 2, StopCode: "publish_unknown"}},
		"silence":                      {request: ingestFault{Delay: 40 * time.Second}},
		"an answer that is no answer":  {request: ingestFault{Garbage: "{}\n"}},
		"an answer about another":      {request: ingestFault{Garbage: `{"index":1,"id":"x"}` + "\n"}},
		"an answer that says nothing":  {request: ingestFault{Garbage: `{"accepted":0,"stopped":null}` + "\n"}},
		"an answer that ends too soon": {request: ingestFault{Garbage: `{"index":0,"code":"invalid_mess`}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ingest := &fakeIngest{}
				p, _ := publisherTo(t, ingest, client.PublisherConfig{MaxRequests: 1, Token: newTokens()}, tt.connection)
				// The three are one request, since they are published while the only slot is taken.
				if tt.connection == (connFault{}) {
					ingest.faults = []ingestFault{{Delay: time.Second}, tt.request}
					publish(t, p, message("other", 0))
					synctest.Wait()
				}
				var results []*client.Result
				for i := range 3 {
					results = append(results, publish(t, p, message("main", i)))
				}
				flush(t, p)
				for i, r := range results {
					if _, err := outcome(r); err != nil {
						t.Errorf("message %d: %v", i, err)
					}
				}
				var got []string
				for _, l := range ingest.log() {
					if l.path == mainPath {
						got = append(got, l.message)
					}
				}
				if diff := cmp.Diff([]string{string(count(0)), string(count(1)), string(count(2))}, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestPublisher_IdleConnectionIsClosed loses a connection with its second
// request, as when a server closes a connection that it takes for idle.
func TestPublisher_IdleConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{faults: []ingestFault{{}, {HangUp: true}}}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{})
		start := time.Now()
		for i := range 2 {
			must.Value(p.PublishAndWait(t.Context(), message("main", i)))(t)
		}
		if took := time.Since(start); took != 0 || len(ingest.log()) != 2 {
			t.Errorf("it took %s, and %d messages are stored", took, len(ingest.log()))
		}
	})
}

// A network that drops all packets leaves all connections open: one silence is enough for them.
func TestPublisher_DeadConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, lost := ingestFault{Delay: time.Second}, connFault{LostAfter: 10 * time.Second}
		n, _ := serve(t, &fakeIngest{faults: []ingestFault{busy, busy, busy}}, lost, lost, lost)
		n.isDefault(t, false)
		p := must.Value(client.NewPublisher(client.PublisherConfig{URL: "http://ingest"}))(t)
		for i := range 3 {
			publish(t, p, message(fmt.Sprint("stream", i), i))
		}
		flush(t, p)
		time.Sleep(20 * time.Second)
		begun := time.Now()
		_, err := p.PublishAndWait(t.Context(), message("main", 4))
		if took := time.Since(begun); err != nil || took > client.DefaultAnswerTimeout+time.Second {
			t.Errorf("error is %v after %s and %d connections", err, took, n.dials)
		}
		must.NoError(t, p.Close(t.Context()))
	})
}

func TestPublisher_OneMessageIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{})
		first := publish(t, p, message("main", 1))
		bad := publish(t, p, client.Message{Session: "demo", Stream: "main", Data: []byte(`{"jsonrpc":"2.0","method":"` + unwanted + `"}`)})
		last := publish(t, p, message("main", 2))
		flush(t, p)
		_, err := outcome(bad)
		if refused, ok := errors.AsType[*client.Error](err); !ok || refused.Code != "invalid_message" || refused.Status != 0 {
			t.Errorf("error is %v", err)
		}
		if errors.Is(err, client.ErrUnknown) {
			t.Errorf("it counts as unknown: %v", err)
		}
		for _, r := range []*client.Result{first, last} {
			must.Value(outcome(r))(t)
		}
	})
}

func TestPublisher_RequestIsRefused(t *testing.T) {
	for _, tt := range []struct {
		status int
		code   string
	}{{409, client.CodeSessionClosed}, {409, client.CodeStreamClosed}, {401, "unauthorized"}, {403, "forbidden"}, {404, client.CodeNotFound}, {413, ""}} {
		t.Run(fmt.Sprint(tt.status, tt.code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ingest := &fakeIngest{faults: []ingestFault{{Status: tt.status, Code: tt.code}}}
				p, _ := publisherTo(t, ingest, client.PublisherConfig{})
				_, err := p.PublishAndWait(t.Context(), message("main", 1))
				refused, ok := errors.AsType[*client.Error](err)
				if !ok || refused.Status != tt.status || refused.Code != tt.code || errors.Is(err, client.ErrUnknown) {
					t.Errorf("error is %v", err)
				}
				if got := len(ingest.seen()); got != 1 {
					t.Errorf("%d requests were sent, want 1", got)
				}
			})
		})
	}
}

// A proxy may take less than MaxBatchBytes, or no text of some kind.
func TestPublisher_BatchIsRefusedByAProxy(t *testing.T) {
	for status, refuses := range map[int]func([]byte) bool{
		http.StatusRequestEntityTooLarge: func(body []byte) bool { return len(body) > 500 },
		http.StatusForbidden:             func(body []byte) bool { return bytes.Contains(body, []byte("xxx")) },
	} {
		synctest.Test(t, func(t *testing.T) {
			ingest := &fakeIngest{faults: []ingestFault{{Delay: time.Second}}, proxy: func(body []byte) int {
				if refuses(body) {
					return status
				}
				return 0
			}}
			p, _ := publisherTo(t, ingest, client.PublisherConfig{})
			var results []*client.Result
			for i := range 20 {
				m := message("main", i) // about 110 bytes
				if i == 15 {
					m.Data = fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q}`, strings.Repeat("x", 500))
				}
				results = append(results, publish(t, p, m))
				synctest.Wait()
			}
			flush(t, p)
			for i, r := range results {
				_, err := outcome(r)
				refused, ok := errors.AsType[*client.Error](err)
				if i != 15 && err != nil || i == 15 && (!ok || refused.Status != status) {
					t.Errorf("the error of message %d is %v", i, err)
				}
			}
			if sizes := ingest.sizes(); len(sizes) > 15 { // 4 of them are refused
				t.Errorf("the requests have %v messages", sizes)
			}
		})
	}
}

// A proxy may redirect a POST after the server has received it, and 301, 302 and 303 make a GET of it: the answer to
// the GET proves nothing about the message. The error has the address.
func TestPublisher_RedirectedToAGet(t *testing.T) {
	moved := "redirected to GET http://ingest/moved" + mainPath
	for _, tt := range []struct {
		status int
		code   string
		want   string // in the error
	}{{400, "invalid_parameter", moved}, {401, "unauthorized", moved}, {503, "unavailable", client.CodeStreamClosed}} {
		t.Run(tt.code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				posts := 0
				_, c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					switch {
					case r.Method == http.MethodGet:
						problem(w, tt.status, tt.code, 0)
					case posts > 0:
						problem(w, http.StatusConflict, client.CodeStreamClosed, 0)
					default:
						posts++
						http.Redirect(w, r, "/moved"+r.URL.Path, http.StatusSeeOther)
					}
				}))
				p := must.Value(client.NewPublisher(client.PublisherConfig{URL: "http://ingest", HTTPClient: c, Token: newTokens()}))(t)
				_, err := p.PublishAndWait(t.Context(), message("main", 1))
				if _, ok := errors.AsType[*client.Error](err); !ok || !errors.Is(err, client.ErrUnknown) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error is %v", err)
				}
				must.NoError(t, p.Close(t.Context()))
			})
		})
	}
}

// TestPublisher_UnknownOutcomeBeforeTheKeyExpires loses every answer, for
// longer than the log recognizes keys.
func TestPublisher_UnknownOutcomeBeforeTheKeyExpires(t *testing.T) {
	for name, fault := range map[string]ingestFault{
		"a proxy's 504":         {Status: 504, Lost: true},
		"hung up":               {HangUp: true, Lost: true},
		"an answer that is cut": {Garbage: `{"index":0,"id":"s_0000`, Lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ingest := &fakeIngest{}
				for range 200 {
					ingest.faults = append(ingest.faults, fault)
				}
				p, _ := publisherTo(t, ingest, client.PublisherConfig{})
				start := time.Now()
				if _, err := p.PublishAndWait(t.Context(), message("main", 1)); !errors.Is(err, client.ErrUnknown) {
					t.Errorf("error is %v, want ErrUnknown", err)
				}
				if got := time.Since(start); got < client.DefaultRepeatWithin || got > dupWindow {
					t.Errorf("it was reported after %s", got)
				}
				if got := len(ingest.log()); got != 1 {
					t.Errorf("it is stored %d times, want 1", got)
				}
				// The next one is no less of a message for that.
				ingest.mu.Lock()
				ingest.faults = nil
				ingest.mu.Unlock()
				must.Value(p.PublishAndWait(t.Context(), message("main", 2)))(t)
			})
		})
	}
}

// TestPublisher_RetryEndsInTime has a repetition that takes so long that the
// log might have forgotten the key when it arrives.
func TestPublisher_RetryEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{faults: []ingestFault{{HangUp: true}, {Delay: 150 * time.Second}}}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{AnswerTimeout: time.Hour})
		start := time.Now()
		if _, err := p.PublishAndWait(t.Context(), message("main", 1)); !errors.Is(err, client.ErrUnknown) {
			t.Errorf("error is %v, want ErrUnknown", err)
		}
		if took := time.Since(start); took > dupWindow {
			t.Errorf("it took %s", took)
		}
	})
}

// A message that is not stored is tried again for longer than the log knows its key, at the pace of Retry-After.
func TestPublisher_NotStoredIsRetriedForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{}
		const times = 100
		for range times {
			ingest.faults = append(ingest.faults, ingestFault{Status: 503, Code: "unavailable", RetryAfter: 3})
		}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{})
		start := time.Now()
		must.Value(p.PublishAndWait(t.Context(), message("main", 1)))(t)
		if took := time.Since(start); took < times*3*time.Second || took > times*client.DefaultPublisherMaxRetry {
			t.Errorf("it took %s", took)
		}
	})
}

// TestPublisher_UnknownOutcomeOutlivesRetries first loses an answer and then receives a refusal, since the session
// is closed: the message may have been stored before that.
func TestPublisher_UnknownOutcomeOutlivesRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest := &fakeIngest{faults: []ingestFault{
			{Status: 502, Lost: true},
			{Status: 503, Code: "unavailable"},
			{Status: 409, Code: client.CodeSessionClosed},
		}}
		p, _ := publisherTo(t, ingest, client.PublisherConfig{})
		_, err := p.PublishAndWait(t.Context(), message("main", 1))
		refused, ok := errors.AsType[*client.Error](err)
		if !errors.Is(err, client.ErrUnknown) || !ok || refused.Code != client.CodeSessionClosed {
			t.Errorf("error is %v", err)
		}
	})
}

// A message that was not sent for want of a token, or was refused for its token, was not stored: it waits for a token
// function that fails, however long.
func TestPublisher_TokenFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ingest, began, asked := &fakeIngest{faults: []ingestFault{{Status: 401, Code: "unauthorized"}}}, time.Now(), 0
		p, _ := publisherTo(t, ingest, client.PublisherConfig{Token: func(context.Context) (string, error) {
			switch asked++; {
			case asked == 2:
				return "a", nil
			case time.Since(began) < 5*time.Minute:
				return "", errors.New("no token")
			default:
				return "", nil
			}
		}})
		must.Value(p.PublishAndWait(t.Context(), message("main", 1)))(t)
		if seen := ingest.seen(); len(seen) != 2 || seen[0].auth != "Bearer a" || seen[1].auth != "" {
			t.Errorf("sent %v", seen)
		}
	})
}
