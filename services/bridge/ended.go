package bridge

import (
	"errors"
	"net/http"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// errEnded is the cause of contexts that end with their session.
var errEnded = errors.New("the session has ended")

// ended says that the session is over.
func ended() rpc.Answer {
	return upstream.Failure(http.StatusNotFound, rpc.CodeInvalid, errEnded.Error())
}
