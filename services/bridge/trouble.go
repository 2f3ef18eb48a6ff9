package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// trouble logs, now and then, what keeps the MCP server from serving requests. of is the same for
// troubles of one sort.
func (h *host) trouble(of, message string, attrs ...slog.Attr) {
	h.troubles.Note(h.life, of, message, attrs...)
}

// unreachable logs why a request to the MCP server had no answer. What ends with the bridge, the
// session or the call is no trouble.
func (h *host) unreachable(err error) {
	for _, own := range []error{upstream.ErrStopping, errEnded, upstream.ErrCancelled, upstream.ErrGone, upstream.ErrExited, context.Canceled} {
		if errors.Is(err, own) {
			return
		}
	}
	h.trouble(innermost(err), "the MCP server cannot be reached", slog.Any("error", err))
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
func (h *host) refused(status int) {
	if status == http.StatusUnauthorized || status == http.StatusForbidden || status >= http.StatusInternalServerError {
		h.trouble(http.StatusText(status), "the MCP server refuses requests", slog.Int("status", status), slog.String("meaning", http.StatusText(status)))
	}
}

// tooLarge logs that a response is larger than the log takes, and returns the text of the error that
// the client receives instead.
func (h *host) tooLarge(session string) string {
	limit := h.maxBytes()
	h.trouble("too large", "a response of the MCP server is larger than the log takes: 'rejoin log set --max-message-bytes=N' raises the limit",
		slog.Int("limit", limit), slog.String("session", session))
	return fmt.Sprintf("%v: the limit is %d bytes (--max-message-bytes)", upstream.ErrTooLarge, limit)
}

// connectError makes an answer of what went wrong; nil of nothing.
func (h *host) connectError(err error) *rpc.Answer {
	if err == nil {
		return nil
	}
	h.trouble("initialize: "+innermost(err), "the MCP server did not answer initialize", slog.Any("error", err))
	a := upstream.Unreachable(err)
	return &a
}
