package event

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// Kind says what an entry of the log is.
type Kind uint8

const (
	// Message is an event that carries a message.
	Message Kind = iota
	// Close is the marker after which a stream or session has no more events.
	Close
	// Clear is the marker before which a stream's or session's events are gone.
	Clear
)

// String returns the word for the kind: "message", "close" or "clear".
func (k Kind) String() string {
	switch k {
	case Close:
		return "close"
	case Clear:
		return "clear"
	default:
		return "message"
	}
}

// The tokens of markers. No name encodes to them, since "l" is no hexadecimal digit.
const (
	closeToken = "=close"
	clearToken = "=clear"
)

// Subject is a place in the log: the subject that an event or a marker is stored
// under. Session and Stream are names, not tokens. A marker with an empty Stream
// is about the whole session.
type Subject struct {
	Partition int
	Session   string
	Stream    string
	Kind      Kind
}

// String returns the NATS subject:
//
//	mcp.<p>.<session>.<stream>           an event
//	mcp.<p>.<session>.=close             the session's close marker
//	mcp.<p>.<session>.<stream>=close     the stream's close marker
//
// and the same with =clear.
func (s Subject) String() string {
	token := ""
	if s.Stream != "" {
		token = Token(s.Stream)
	}
	switch s.Kind {
	case Close:
		token += closeToken
	case Clear:
		token += clearToken
	case Message:
	}
	return "mcp." + strconv.Itoa(s.Partition) + "." + Token(s.Session) + "." + token
}

// ParseSubject reads what [Subject.String] writes and nothing else; the error
// wraps [ErrInvalidSubject].
func ParseSubject(subject string) (Subject, error) {
	bad := func() (Subject, error) { return Subject{}, fmt.Errorf("%w: %q", ErrInvalidSubject, subject) }
	rest, ok := strings.CutPrefix(subject, "mcp.")
	if !ok {
		return bad()
	}
	number, rest, ok := strings.Cut(rest, ".")
	if !ok {
		return bad()
	}
	p, err := strconv.Atoi(number)
	if err != nil || p < 0 || strconv.Itoa(p) != number {
		return bad()
	}
	sessionToken, token, ok := strings.Cut(rest, ".")
	if !ok {
		return bad()
	}
	s := Subject{Partition: p}
	if s.Session, err = SessionName(sessionToken); err != nil {
		return bad()
	}
	if t, ok := strings.CutSuffix(token, closeToken); ok {
		s.Kind, token = Close, t
	} else if t, ok := strings.CutSuffix(token, clearToken); ok {
		s.Kind, token = Clear, t
	}
	if s.Kind != Message && token == "" {
		return s, nil
	}
	if s.Stream, err = StreamName(token); err != nil {
		return bad()
	}
	return s, nil
}

// Partition returns the partition of a session in a log of n partitions: FNV-1a
// 32 of the session's token modulo n, which is what the NATS server's own
// {{partition(n,…)}} subject mapping computes.
func Partition(session string, n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(Token(session)))
	return int(h.Sum32() % uint32(n)) //nolint:gosec // n is a small positive count
}
