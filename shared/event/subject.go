package event

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
)

// Kind is the kind of an entry of the log.
type Kind uint8

const (
	// Message is an event that carries a message.
	Message Kind = iota
	// Open is the opening of a session: it names the life, the owner and the metadata.
	Open
	// Birth names a stream of a life. It is stored before the stream's first event, and
	// only while the life has no [Seal].
	Birth
	// Seal is the entry after which a life has no more births.
	Seal
	// End is the entry after which a stream, or a life, has no more events.
	End
	// Clear is the entry before which a stream's or a life's events are cleared.
	Clear
	// Trim is the entry that announces which events of a stream or a life are removed.
	Trim
)

// controls are the tokens of control entries. No name encodes to one of them, since in an
// escape "=XX" both digits are hexadecimal and upper case.
var controls = [...]string{Open: "=open", Birth: "=birth", Seal: "=seal", End: "=end", Clear: "=clear", Trim: "=trim"}

// String returns the word for the kind: "message", "open", "birth", "seal", "end", "clear" or "trim".
func (k Kind) String() string {
	if k == Message || int(k) >= len(controls) {
		return "message"
	}
	return controls[k][1:]
}

// noLife is the token of the empty life.
const noLife = "="

// maxLifeLen bounds a life.
const maxLifeLen = 32

// Subject is the subject under which an entry is stored in the log. Session and
// Stream are names, not tokens.
type Subject struct {
	Partition int
	Session   string
	// Life tells this use of the session's name from earlier ones: up to 32 characters
	// of [a-z0-9]. It is empty in events that were published without an opening, and in
	// openings, which are about all lives.
	Life string
	// Stream is empty in control entries that are about the whole life, and in openings.
	Stream string
	Kind   Kind
}

// String returns the NATS subject:
//
//	mcp.<p>.<session>.=open                  the opening of a session
//	mcp.<p>.<session>.<life>.<stream>        an event
//	mcp.<p>.<session>.<life>.=birth.<stream> the birth of a stream
//	mcp.<p>.<session>.<life>.=seal           no more births
//	mcp.<p>.<session>.<life>.=end            the end of the life
//	mcp.<p>.<session>.<life>.=end.<stream>   the end of a stream
//
// and the last two with =clear and =trim as well. The empty life is "=". The subjects of the
// entries that are of no session are [GenerationSubject] and [FloorSubject].
func (s Subject) String() string {
	var buf [160]byte
	b := s.appendSession(buf[:0])
	if s.Kind == Open {
		return string(append(b, controls[Open]...))
	}
	b = append(b, lifeToken(s.Life)...)
	if s.Kind != Message {
		b = append(b, '.')
		b = append(b, controls[s.Kind]...)
	}
	if s.Kind == Message || s.Stream != "" {
		b = append(b, '.')
		b = append(b, Token(s.Stream)...)
	}
	return string(b)
}

// appendSession appends "mcp.<p>.<session>.".
func (s Subject) appendSession(b []byte) []byte {
	b = append(b, "mcp."...)
	b = strconv.AppendInt(b, int64(s.Partition), 10)
	b = append(b, '.')
	b = append(b, Token(s.Session)...)
	return append(b, '.')
}

// Filter returns the subject filter of all entries of a life: its events and control entries.
func (s Subject) Filter() string {
	return string(s.appendSession(nil)) + lifeToken(s.Life) + ".>"
}

// TrimsFilter returns the subject filter of the trims of all streams of a life.
func (s Subject) TrimsFilter() string {
	return string(s.appendSession(nil)) + lifeToken(s.Life) + "." + controls[Trim] + ".>"
}

// LivesFilters returns the subject filters of the openings of a partition, and of the ends of lives.
func LivesFilters(partition int) [2]string {
	of := "mcp." + strconv.Itoa(partition) + ".*."
	return [2]string{of + controls[Open], of + "*." + controls[End]}
}

// SessionFilter returns the subject filter of all entries of a session, of all lives.
func (s Subject) SessionFilter() string {
	return string(s.appendSession(nil)) + ">"
}

// generationToken stands in the place of a session.
const generationToken = "=generation"

// GenerationSubject returns the subject of the entry that a generation of a partition begins with
// when no janitor has begun it: mcp.<p>.=generation.<id>. [ParseSubject] refuses it.
func GenerationSubject(partition int, id string) string {
	return "mcp." + strconv.Itoa(partition) + "." + generationToken + "." + id
}

// ParseGenerationSubject returns the ID of the generation that begins with an entry of a partition.
func ParseGenerationSubject(partition int, subject string) (id string, ok bool) {
	id, ok = strings.CutPrefix(subject, GenerationSubject(partition, ""))
	return id, ok && id != "" && CheckLife(id) == nil
}

// floorToken stands in the place of a session.
const floorToken = "=floor"

// FloorSubject returns the subject of the entries that announce how far the floor of a partition is about to
// move: mcp.<p>.=floor.=.=trim. [ParseSubject] refuses it.
func FloorSubject(partition int) string {
	return "mcp." + strconv.Itoa(partition) + "." + floorToken + "." + noLife + "." + controls[Trim]
}

// LifeKey names a life of a session in one text: the session's name, a space, which no name
// holds, and the life.
func LifeKey(session, life string) string { return session + " " + life }

// ParseLifeKey returns the session and the life of a [LifeKey].
func ParseLifeKey(key string) (session, life string) {
	session, life, _ = strings.Cut(key, " ")
	return session, life
}

func lifeToken(life string) string { return cmp.Or(life, noLife) }

// CheckLife reports whether a text may be a life: at most 32 characters of [a-z0-9], or
// empty. The error wraps [ErrInvalidSubject].
func CheckLife(life string) error {
	if len(life) > maxLifeLen || strings.Trim(life, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fmt.Errorf("%w: the life %q", ErrInvalidSubject, life)
	}
	return nil
}

// ParseSubject reads the text of [Subject.String] and no other; the error
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
	sessionToken, rest, ok := strings.Cut(rest, ".")
	if !ok {
		return bad()
	}
	s := Subject{Partition: p}
	if s.Session, err = SessionName(sessionToken); err != nil {
		return bad()
	}
	if rest == controls[Open] {
		s.Kind = Open
		return s, nil
	}
	life, token, ok := strings.Cut(rest, ".")
	if !ok || life == "" {
		return bad()
	}
	if life != noLife {
		if CheckLife(life) != nil {
			return bad()
		}
		s.Life = life
	}
	if control, stream, of := strings.Cut(token, "."); of || strings.HasPrefix(token, "=") {
		if kind := slices.Index(controls[:], control); kind > int(Open) { // an opening has no life
			s.Kind = Kind(kind) //nolint:gosec // the index of a kind
		}
		switch {
		case s.Kind == Message && of, s.Kind == Birth && !of, s.Kind == Seal && of:
			return bad()
		case s.Kind != Message && !of:
			return s, nil
		case of:
			token = stream
		}
	}
	if s.Stream, err = StreamName(token); err != nil {
		return bad()
	}
	return s, nil
}

// Partition returns the partition of a session in a log of n partitions: the CRC-32 of the session's
// name (IEEE 802.3, as zlib has it) modulo n.
func Partition(session string, n int) int {
	return int(crc32.ChecksumIEEE([]byte(session)) % uint32(n)) //nolint:gosec // n is a small positive count
}
