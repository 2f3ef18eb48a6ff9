package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"rejoin/shared/event"
	"rejoin/shared/rpc"
)

// statePrefix tells the states of bridges from those of servers, which are passed on.
const statePrefix = "rejoin."

// State is the requestState of a call that a bridge holds while its client gathers input. It is no
// sealed secret, but a name that cannot be guessed: the call, and the client that may use it,
// are in the bridge's memory until the call ends.
type State struct {
	Session, Life string
	// Round is the round in which the client was asked; another one of the same call is of an earlier answer.
	Round string
}

func (s State) String() string { return statePrefix + s.Session + "." + s.Life + "." + s.Round }

// ParseState reads the requestState of a request. ours says that it is a bridge's; the error of
// a malformed one is an [*Error].
func ParseState(text string) (s State, ours bool, err error) {
	rest, ours := strings.CutPrefix(text, statePrefix)
	if !ours {
		return State{}, false, nil
	}
	session, rest, _ := strings.Cut(rest, ".")
	life, round, _ := strings.Cut(rest, ".")
	s = State{Session: session, Life: life, Round: round}
	if uuid.Validate(session) != nil || event.CheckSession(session) != nil || life == "" || event.CheckLife(life) != nil || round == "" {
		return State{}, true, ErrState
	}
	return s, true, nil
}

// ErrState is the answer to a request with the state of a call that is over, or of another client.
var ErrState = invalid("the requestState is not known: its call has ended, or it belongs to another request.")

// State returns the requestState of a request, if it is a bridge's. The error is an [*Error].
func (r Request) State() (s State, ours bool, err error) { return ParseState(r.requestState()) }

// requestState returns the requestState; empty where it is no text.
func (r Request) requestState() (value string) {
	_ = text(r.Params["requestState"], &value)
	return value
}

// handOverPrefix begins the states of edges. For a bridge or an edge that does not know it, it is a
// malformed state, and no request to pass on.
const handOverPrefix = statePrefix + "at."

// MaxHandOvers is how often a call is handed over.
const MaxHandOvers = 3

// HandOver is the requestState of a call that an edge hands over to its client's next request: that
// request receives the later messages, from any edge.
type HandOver struct {
	Session string
	// Times is how often the call has been handed over.
	Times int
	// Content is the result of [Request.Content] for the call's request.
	Content string
	// After is the event ID up to which the client has received all events.
	After string
}

func (h HandOver) String() string {
	return handOverPrefix + strings.Join([]string{h.Session, strconv.Itoa(h.Times), h.Content, h.After}, ".")
}

// HandOver returns the requestState of a request, if it is an edge's. The error is [ErrState] unless
// the state is well-formed, and of the same request.
func (r Request) HandOver() (h HandOver, ours bool, err error) {
	rest, ours := strings.CutPrefix(r.requestState(), handOverPrefix)
	if !ours {
		return HandOver{}, false, nil
	}
	parts := strings.SplitN(rest, ".", 4)
	if len(parts) != 4 {
		return HandOver{}, true, ErrState
	}
	h = HandOver{Session: parts[0], Content: parts[2], After: parts[3]}
	h.Times, err = strconv.Atoi(parts[1])
	if err != nil || h.Times < 1 || h.Times > MaxHandOvers || uuid.Validate(h.Session) != nil || event.CheckSession(h.Session) != nil || h.Content != r.Content() {
		return HandOver{}, true, ErrState
	}
	return h, true, nil
}

// CanHandOver reports whether a method's result may be that the client makes its request again.
func CanHandOver(method string) bool {
	return method == MethodCallTool || method == MethodGetPrompt || method == MethodRead
}

// Content is equal for requests of the same method and parameters, but for _meta and their answers to the server.
func (r Request) Content() string {
	params := maps.Clone(r.Params)
	delete(params, "_meta")
	delete(params, "inputResponses")
	delete(params, "requestState")
	b, _ := json.Marshal([]any{r.Method, params}) // never fails for values that were read from JSON
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// Renamed returns a message to a client for another request of the same content: a response has its
// ID, and a progress notification its token; nil when the request has no token.
func (r Request) Renamed(message []byte) []byte {
	var m, params map[string]json.RawMessage
	if rpc.Unmarshal(message, &m) != nil {
		return message
	}
	var method string
	switch {
	case m["method"] == nil:
		m["id"] = r.ID
	case text(m["method"], &method) && method == "notifications/progress" && rpc.Unmarshal(m["params"], &params) == nil && params != nil:
		token := r.Meta["progressToken"]
		if token == nil {
			return nil
		}
		params["progressToken"] = token
		m["params"] = event.MustJSON(params)
	default:
		return message
	}
	return event.MustJSON(m)
}
