package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// Trouble logs, now and then, a trouble that keeps the MCP server from serving requests. of is the same
// for troubles of one sort.
func (h *Host) Trouble(of, message string, attrs ...slog.Attr) {
	h.troubles.Note(h.Life, of, message, attrs...)
}

// Unreachable logs why a request to the MCP server had no answer. A request that ends with the bridge,
// the session or the call is no trouble.
func (h *Host) Unreachable(err error) {
	own := []error{upstream.ErrStopping, upstream.ErrPaused, ErrEnded, upstream.ErrCancelled, upstream.ErrGone, upstream.ErrExited, context.Canceled}
	if slices.ContainsFunc(own, func(end error) bool { return errors.Is(err, end) }) {
		return
	}
	of := fmt.Sprint(innermost(err), h.reached.Load()) // due again once a line was logged that it can be reached
	if h.troubles.Note(h.Life, of, "the MCP server cannot be reached", slog.Any("error", err)) {
		h.unreachable.Store(true)
	}
}

// Reached logs that the MCP server has answered, or was started, if the last line about it is that it cannot be
// reached: once a minute at most, as each such line makes the next warning due.
func (h *Host) Reached() {
	if h.unreachable.Load() && h.troubles.Due("reached") && h.unreachable.CompareAndSwap(true, false) {
		h.reached.Add(1)
		h.Logger.Info("the MCP server can be reached", "upstream", h.Config.ShownUpstream())
	}
}

// innermost returns the text of the error that the others wrap: addresses and ports in
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

// Refused logs an answer that is the operator's concern: the credentials, or the server.
func (h *Host) Refused(status int) {
	if status == http.StatusUnauthorized || status == http.StatusForbidden || status >= http.StatusInternalServerError {
		h.Trouble(http.StatusText(status), "the MCP server refuses requests", slog.Int("status", status), slog.String("meaning", http.StatusText(status)))
	}
}

// TooLarge logs that a response is larger than the log takes, and returns the text of the error that
// the client receives instead.
func (h *Host) TooLarge(session string) string {
	limit := h.MaxBytes()
	h.Trouble("too large", "a response of the MCP server is larger than the log takes: 'rejoin log set --max-message-bytes=N' raises the limit",
		slog.Int("limit", limit), slog.String("session", session))
	return fmt.Sprintf("%v: the limit is %d bytes (--max-message-bytes)", upstream.ErrTooLarge, limit)
}

// ConnectError logs an error and makes an answer of it; nil of nil.
func (h *Host) ConnectError(err error) *rpc.Answer {
	if err == nil {
		return nil
	}
	h.Trouble("initialize: "+innermost(err), "the MCP server did not answer initialize", slog.Any("error", err))
	return new(upstream.Unreachable(err))
}
