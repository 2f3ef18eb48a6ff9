package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"rejoin/shared/sse"
)

// connection is one answer of an edge, while it continues.
type connection struct {
	body   io.Closer
	blocks *sse.Decoder
	guard  *guard
}

// open asks the edge for the events after the subscriber's cursor. It returns errDone
// when no event will ever follow, and an *Error for a refusal.
func (s *Subscriber) open(ctx context.Context) (conn *connection, err error) {
	g := newGuard(ctx)
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	g.expect(s.cfg.OpenTimeout)
	defer g.rest()
	req, err := s.request(g.ctx)
	if err != nil {
		return nil, g.why(err)
	}
	resp, err := s.endpoint.do(req)
	if err != nil {
		return nil, g.why(err)
	}
	if err := s.check(resp); err != nil {
		_ = resp.Body.Close() // an error changes nothing: the answer is known
		return nil, err
	}
	body := guarded{body: resp.Body, guard: g, within: s.cfg.IdleTimeout}
	return &connection{body: resp.Body, blocks: sse.NewDecoder(body, s.cfg.MaxEventBytes), guard: g}, nil
}

func (s *Subscriber) request(ctx context.Context) (*http.Request, error) {
	path := eventsPath(s.cfg.Session, s.cfg.Stream)
	query := url.Values{}
	if s.cfg.Stream != "" && s.cfg.Times {
		query.Set("envelope", "true")
	}
	if len(s.cfg.Methods) > 0 {
		query.Set("method", strings.Join(s.cfg.Methods, ","))
	}
	if s.cfg.Level != "" {
		query.Set("level", s.cfg.Level)
	}
	cursor := s.Cursor()
	switch {
	case cursor != "":
	case !s.cfg.Since.IsZero():
		query.Set("from", s.cfg.Since.UTC().Format(time.RFC3339Nano))
	case s.cfg.Start == StartNow:
		query.Set("from", "now")
	case s.cfg.Last > 0:
		query.Set("last", strconv.Itoa(s.cfg.Last))
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	req, err := s.endpoint.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/event-stream")
	// A proxy that compresses holds events back until it has enough of them.
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("Cache-Control", "no-store")
	if cursor != "" {
		req.Header.Set("Last-Event-ID", cursor)
	}
	return req, nil
}

// check returns nil when an answer is an event stream. Without a cursor, a page means that the URL is wrong; with
// one, from an earlier connection or the configuration, it is taken for a proxy's temporary page.
func (s *Subscriber) check(resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusOK:
		kind, encoding := resp.Header.Get("Content-Type"), resp.Header.Get("Content-Encoding")
		media, _, err := mime.ParseMediaType(kind)
		if err == nil && media == "text/event-stream" && (encoding == "" || strings.EqualFold(encoding, "identity")) {
			return nil
		}
		err = fmt.Errorf("the answer is %q, not an event stream", strings.Trim(kind+", "+encoding, ", "))
		if s.Cursor() == "" {
			err = fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		return err
	case http.StatusNoContent:
		return errDone
	default:
		return refusal(resp)
	}
}

// next returns the next block. An end of the stream is errEnded: only a message of the
// server ends a subscription.
func (c *connection) next() (sse.Event, error) {
	block, err := c.blocks.Next()
	switch {
	case err == nil:
		return block, nil
	case errors.Is(err, sse.ErrTooLong):
		return sse.Event{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	case errors.Is(err, io.EOF):
		return sse.Event{}, errEnded
	default:
		return sse.Event{}, c.guard.why(err)
	}
}

func (c *connection) close() {
	c.guard.close()
	_ = c.body.Close() // it may be broken
}
