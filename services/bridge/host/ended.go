package host

import (
	"errors"
	"net/http"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// ErrEnded is the cause of contexts that end with their session.
var ErrEnded = errors.New("the session has ended")

// Ended says that the session is over.
func Ended() rpc.Answer {
	return upstream.Failure(http.StatusNotFound, rpc.CodeInvalid, ErrEnded.Error())
}
