package edgetest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"rejoin/shared/event"
	"rejoin/shared/inspect"
	"rejoin/shared/must"
	"rejoin/shared/sse"
)

// Client is one connection to an event stream. Its methods fail the test.
type Client struct {
	T        *testing.T
	Response *http.Response
	Decoder  *sse.Decoder
}

// Subscribe opens an event stream; headers are pairs of names and values.
func Subscribe(t *testing.T, url string, headers ...string) *Client {
	t.Helper()
	resp, err := Send(t, http.MethodGet, url, append([]string{"Accept", "text/event-stream"}, headers...)...) //nolint:bodyclose // closed with the test
	must.NoError(t, err)
	return Follow(t, resp)
}

// Follow reads a response that is an event stream, and closes it with the test.
func Follow(t *testing.T, resp *http.Response) *Client {
	t.Helper()
	c := &Client{T: t, Response: resp, Decoder: sse.NewDecoder(resp.Body, 1<<22)}
	t.Cleanup(c.Close)
	return c
}

// Close closes the connection.
func (c *Client) Close() { _ = c.Response.Body.Close() }

// Next returns the next event of a type, and fails on any other but cursors.
func (c *Client) Next(typ string) sse.Event {
	c.T.Helper()
	for {
		e, err := c.Decoder.Next()
		if err != nil {
			c.T.Fatalf("waiting for %s: %v", typ, err)
		}
		if e.Type == "cursor" && typ != "cursor" {
			continue
		}
		if e.Type != typ {
			c.T.Fatalf("got %s %s, want %s", e.Type, e.Data, typ)
		}
		return e
	}
}

// Messages reads n messages.
func (c *Client) Messages(n int) (lastID string) {
	c.T.Helper()
	for range n {
		lastID = c.Next("message").ID
	}
	return lastID
}

// WantEnd expects the end of the body.
func (c *Client) WantEnd() {
	c.T.Helper()
	if e, err := c.Decoder.Next(); !errors.Is(err, io.EOF) {
		c.T.Errorf("the stream continues with %s, %v", e.Data, err)
	}
}

// Answered is a response with its body read.
type Answered struct {
	*http.Response
	Text string
}

// Got fails the test unless the answer has a status.
func (a Answered) Got(t *testing.T, status int) {
	t.Helper()
	if a.StatusCode != status {
		t.Fatalf("%d %s, want %d", a.StatusCode, a.Text, status)
	}
}

// Ask makes a request with headers in pairs.
func Ask(t *testing.T, method, url string, headers ...string) Answered {
	t.Helper()
	resp, err := Send(t, method, url, headers...)
	must.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	return Read(t, resp)
}

// Read reads the body of a response.
func Read(t *testing.T, resp *http.Response) Answered {
	t.Helper()
	data := must.Value(io.ReadAll(resp.Body))(t)
	return Answered{resp, string(data)}
}

// Send is [Ask] for a caller that takes the response, or the error.
func Send(t *testing.T, method, url string, headers ...string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
}

// SequenceOf returns the sequence in an event ID.
func SequenceOf(t *testing.T, id string) uint64 {
	t.Helper()
	parsed := must.Value(event.ParseID(id))(t)
	return parsed.Sequence
}

// Sequences returns all sequences from one to another.
func Sequences(from, to uint64) (all []uint64) {
	for n := from; n <= to; n++ {
		all = append(all, n)
	}
	return all
}

// Happenings returns a line for each happening, the oldest first.
func Happenings(happenings []inspect.Happening) string {
	var all []string
	for _, h := range slices.Backward(happenings) {
		one := string(h.What) + " " + cmp.Or(h.Stream, "*")
		switch h.What {
		case inspect.Connected, inspect.Resumed:
			one += fmt.Sprintf(" %s from %d", h.Came, h.Cursor)
		case inspect.Gapped:
			one += fmt.Sprintf(" %s %t, asked for %s, on from %d", h.Reason, *h.Certain, h.Requested, h.Cursor)
		case inspect.Ended:
			one += fmt.Sprintf(" %s at %d, sent %d", h.Reason, h.Cursor, h.Events)
		}
		all = append(all, one)
	}
	return strings.Join(all, "\n")
}
