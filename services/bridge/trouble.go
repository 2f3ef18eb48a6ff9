package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// unreachable logs why a request to the MCP server had no answer. What ends with the bridge, the
// session or the call is no trouble.
func (s *Service) unreachable(err error) {
	for _, own := range []error{upstream.ErrStopping, errEnded, upstream.ErrCancelled, upstream.ErrGone, upstream.ErrExited, context.Canceled} {
		if errors.Is(err, own) {
			return
		}
	}
	s.troubles.Note(s.life, innermost(err), "the MCP server cannot be reached", slog.Any("error", err))
}

// innermost returns the text of the error that the others are about: addresses and ports in
// between differ each time.
func innermost(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// refused logs an answer that is the operator's concern: the credentials, or the server.
func (s *Service) refused(status int) {
	if status == http.StatusUnauthorized || status == http.StatusForbidden || status >= http.StatusInternalServerError {
		s.troubles.Note(s.life, http.StatusText(status), "the MCP server refuses requests", slog.Int("status", status), slog.String("meaning", http.StatusText(status)))
	}
}

// tooLarge logs that a response is larger than the log takes, and returns the text of the error that
// the client receives instead.
func (s *Service) tooLarge(session string) string {
	limit := s.maxBytes()
	s.troubles.Note(s.life, "too large", "a response of the MCP server is larger than the log takes: 'rejoin log set --max-message-bytes=N' raises the limit",
		slog.Int("limit", limit), slog.String("session", session))
	return fmt.Sprintf("%v: the limit is %d bytes (--max-message-bytes)", upstream.ErrTooLarge, limit)
}

// errOtherRevisions is answered for an MCP server that has no initialize any more. Its own answer
// names revisions that no edge speaks: a client would ask for one of them, in vain.
var errOtherRevisions = upstream.Failure(http.StatusBadGateway, rpc.CodeInternal, "the MCP server speaks only revisions of MCP that Rejoin does not")

// speaksOthers reports whether an answer to initialize is the error of an MCP server that does not
// speak the revision, and which it speaks.
func speaksOthers(answer []byte) (supported []string, others bool) {
	m, err := rpc.ParseMessage(answer)
	if err != nil || m.Error == nil {
		return nil, false
	}
	var e struct {
		Code int `json:"code"`
		Data struct {
			Supported []string `json:"supported"`
		} `json:"data"`
	}
	if rpc.Unmarshal(m.Error, &e) != nil || e.Code != mcp.CodeUnsupportedVersion {
		return nil, false
	}
	return e.Data.Supported, true
}

// checkUpstream says in the log whether the MCP server can be reached. A request of the method
// OPTIONS begins nothing there, and any answer will do.
func (s *Service) checkUpstream() {
	if s.command != nil {
		return // each session starts a process
	}
	ctx, cancel := context.WithTimeout(s.life, upstream.DialTimeout)
	defer cancel()
	resp, err := s.endpoint.Do(ctx, http.MethodOptions, nil, nil) //nolint:bodyclose // Finish closes it
	if err != nil {
		s.unreachable(err)
		return
	}
	upstream.Finish(resp)
	s.log.Info("the MCP server can be reached", "upstream", s.cfg.ShownUpstream(), "status", resp.StatusCode)
}

// ErrNoUpstream is returned when a bridge has no MCP server to stand beside.
var ErrNoUpstream = errors.New("--upstream is missing")

var (
	// errEnded is the cause of contexts that end with their session.
	errEnded = errors.New("the session has ended")

	// errBusy is returned when there are as many processes as there may be, or as many as
	// this client may have of them.
	errBusy = errors.New("the bridge has too many processes, or too many of this client's")

	// errUnknownRequest is why a response without an open request is left out.
	errUnknownRequest = errors.New("it is about a request that is over")

	// errEarly is why a message before the response to initialize is left out.
	errEarly = errors.New("it came before the response to initialize, and too many did")

	// errSubscriptions is returned when a client subscribes to more than the bridge keeps for it.
	errSubscriptions = errors.New("there are too many subscriptions, or their URIs are too long")

	// errClosed is returned when the log takes no more of a stream.
	errClosed = errors.New("the stream is closed")
)

// The pauses between two attempts.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// retry calls try until it succeeds, or ctx ends, and returns ctx's error then.
func retry(ctx context.Context, try func() error) error {
	for pause := firstPause; try() != nil; pause = min(2*pause, lastPause) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	return nil
}

// unknownState refuses the requestState of a call that is over, or somebody else's.
func unknownState() rpc.Answer {
	return upstream.Failure(mcp.ErrState.Status, mcp.ErrState.Code, mcp.ErrState.Message)
}

// unknownTask refuses a request about a task that does not exist, or is somebody else's.
func unknownTask() rpc.Answer {
	return upstream.Failure(mcp.ErrTask.Status, mcp.ErrTask.Code, mcp.ErrTask.Message)
}

// saysNothing reports whether a status says nothing of what the MCP server makes of a request: it is
// in trouble, or does not let the bridge in.
func saysNothing(status int) bool {
	return status >= http.StatusInternalServerError || status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusTooManyRequests
}

// ended says that the session is over.
func ended() rpc.Answer {
	return upstream.Failure(http.StatusNotFound, rpc.CodeInvalid, errEnded.Error())
}
