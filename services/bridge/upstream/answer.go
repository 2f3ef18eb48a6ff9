package upstream

import (
	"encoding/json"
	"net/http"
	"strconv"

	"rejoin/shared/event"
	"rejoin/shared/rpc"
)

// retrySeconds is the Retry-After of an answer after which a client tries again.
const retrySeconds = 2

// Failure is an answer with a JSON-RPC error.
func Failure(status, code int, text string) rpc.Answer {
	return rpc.Answer{Status: status, Data: rpc.ErrorMessage(nil, code, text, nil)}
}

// Busy says that trying again may help.
func Busy(text string) rpc.Answer {
	a := Failure(http.StatusServiceUnavailable, rpc.CodeInternal, text)
	a.Header = http.Header{"Retry-After": {strconv.Itoa(retrySeconds)}}
	return a
}

// NotTaken is the answer of a bridge that stops, or may have been replaced, to a request that it has not begun.
func NotTaken(why error) rpc.Answer {
	a := Busy(why.Error())
	a.NotTaken = true
	return a
}

// OutcomeUnknown is the answer to a request that the MCP server may have begun, and does twice when it is repeated.
func OutcomeUnknown(text string) rpc.Answer {
	return Failure(http.StatusGatewayTimeout, CodeTimeout, text)
}

// About gives an error the ID of the one request that it is about.
func About(a rpc.Answer, ids []json.RawMessage) rpc.Answer {
	m, err := rpc.ParseMessage(a.Data)
	if len(ids) != 1 || err != nil || m.Error == nil || m.ID != nil && string(m.ID) != "null" {
		return a
	}
	a.Data = event.MustJSON(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   json.RawMessage `json:"error"`
	}{"2.0", ids[0], m.Error})
	return a
}
