package bridge

import (
	"encoding/json"
	"net/http"
	"strconv"

	"rejoin/shared/rpc"
)

// retrySeconds is when a client that was told to come again does.
const retrySeconds = 2

// failure is an answer with a JSON-RPC error.
func failure(status, code int, text string) rpc.Answer {
	return rpc.Answer{Status: status, Data: rpc.ErrorMessage(nil, code, text, nil)}
}

// busy says that trying again may help.
func busy(text string) rpc.Answer {
	a := failure(http.StatusServiceUnavailable, rpc.CodeInternal, text)
	a.Header = http.Header{"Retry-After": {strconv.Itoa(retrySeconds)}}
	return a
}

// about gives an error the ID of the one request that it is about.
func about(a rpc.Answer, ids []json.RawMessage) rpc.Answer {
	if len(ids) != 1 || len(a.Data) == 0 {
		return a
	}
	m, err := rpc.ParseMessage(a.Data)
	if err != nil || m.Error == nil || m.ID != nil && string(m.ID) != "null" {
		return a
	}
	data, err := json.Marshal(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   json.RawMessage `json:"error"`
	}{"2.0", ids[0], m.Error})
	if err == nil {
		a.Data = data
	}
	return a
}

// ended says that the session is over.
func ended() rpc.Answer { return failure(http.StatusNotFound, rpc.CodeInvalid, errEnded.Error()) }
