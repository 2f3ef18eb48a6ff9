package host

import (
	"errors"
	"net/http"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// ErrEnded is the cause of contexts that end with their session.
var ErrEnded = errors.New("the session has ended")

// ErrReplaced is returned by [Host.Confirm], and ends a bridge, when another one has taken its name. The other one got
// no answer from it: it was paused, or cut off from NATS. Of two bridges, each would get some of the requests of a
// session, and know only the calls of those.
var ErrReplaced = errors.New("another bridge has taken over, with the same --bridge-name")

// Ended returns the answer for a session that is over.
func Ended() rpc.Answer {
	return upstream.Failure(http.StatusNotFound, rpc.CodeInvalid, ErrEnded.Error())
}
