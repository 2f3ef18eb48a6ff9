package mcp

import (
	"strings"

	"github.com/google/uuid"

	"rejoin/shared/event"
)

// statePrefix tells the states of bridges from those of servers, which are passed on.
const statePrefix = "rejoin."

// State is the requestState of a call that a bridge holds while its client gathers input. It is no
// secret that is sealed, but a name that nobody can guess: what it stands for, and who may use it,
// is in the bridge's memory and ends with the call.
type State struct {
	Session, Life string
	// Round is what the client was asked in; another one of the same call is of an earlier answer.
	Round string
}

func (s State) String() string { return statePrefix + s.Session + "." + s.Life + "." + s.Round }

// ParseState reads the requestState of a request. ours says that it is a bridge's; the error of
// one that is not whole is an [*Error].
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

// ErrState is the answer to a request with the state of a call that is over, or somebody else's.
var ErrState = invalid("the requestState is not known: its call has ended, or it belongs to another request.")

// State returns the requestState of a request, if it is a bridge's. The error is an [*Error].
func (r Request) State() (s State, ours bool, err error) {
	var value string
	if !text(r.Params["requestState"], &value) {
		return State{}, false, nil
	}
	return ParseState(value)
}
