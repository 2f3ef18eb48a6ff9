package event

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Generation is a range of a partition's sequences. A new one begins when the partition is created, and when
// its server, or in a cluster most of the servers that hold it, was restarted: the newest entries
// may be lost.
type Generation struct {
	// ID is random text without spaces, commas or colons.
	ID string
	// Start is the first sequence that belongs to the generation.
	Start uint64
}

// TagParts are the place and the generation to which an event ID's tag binds a sequence.
type TagParts struct {
	// Origin is the ID of the partition's first generation.
	Origin string
	// Generation is the ID of the generation that the event ID was made in.
	Generation string
	// Session is the session's name.
	Session string
	// Life is the life of the session's name; empty while the session has no opening.
	Life string
	// Stream is the stream's name, or empty for the flow of the whole session.
	Stream string
}

// A tag is placeLen characters that name the place, without the generation, and
// generationLen that name it with the generation. The first part alone tells an
// ID of this place but of a lost generation (the log was rolled back) from a
// foreign one; a foreign ID has to match both.
const (
	placeLen      = 3
	generationLen = 4
	tagLen        = placeLen + generationLen
)

// Tag returns the seven base-36 characters that an event ID of the place carries.
func (p TagParts) Tag() string {
	kind := "stream"
	if p.Stream == "" {
		kind = "flow"
	}
	var b [tagLen]byte
	base36(b[:placeLen], digest("place", p.Origin, p.Session, p.Life, kind, p.Stream))
	base36(b[placeLen:], digest("generation", p.Origin, p.Generation, p.Session, p.Life, kind, p.Stream))
	return string(b[:])
}

// SamePlace reports whether two tags may be of one place, in whatever generations.
func SamePlace(a, b string) bool {
	return len(a) == tagLen && len(b) == tagLen && a[:placeLen] == b[:placeLen]
}

// digest hashes length-prefixed fields, so that no two lists of fields collide.
func digest(fields ...string) uint64 {
	var buf [512]byte
	b := buf[:0]
	for _, f := range fields {
		b = binary.AppendUvarint(b, uint64(len(f)))
		b = append(b, f...)
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:8])
}

func base36(dst []byte, v uint64) {
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[v%36]
		v /= 36
	}
}

// ID is an event ID: a position in a stream, or in the flow of a session.
type ID struct {
	// Stream is the stream's name, or empty for the flow of a whole session.
	Stream string
	// Tag is the seven characters of [TagParts.Tag].
	Tag string
	// Sequence is the partition sequence up to which all events were delivered.
	Sequence uint64
}

// String returns "<stream>_<tag>_<sequence>", where <stream> is the token, or a
// bare "*" for the flow of a session.
func (id ID) String() string {
	return string(id.Append(nil))
}

// Append appends the text of the ID to b.
func (id ID) Append(b []byte) []byte {
	b = AppendIDPrefix(b, id.Stream, id.Tag)
	return strconv.AppendUint(b, id.Sequence, 10)
}

// AppendIDPrefix appends all of an ID but its sequence, for callers that write
// many IDs of one place.
func AppendIDPrefix(b []byte, stream, tag string) []byte {
	if stream == "" {
		b = append(b, Flow...)
	} else {
		b = append(b, Token(stream)...)
	}
	b = append(b, '_')
	b = append(b, tag...)
	return append(b, '_')
}

// maxIDLen bounds the text that ParseID reads: a token of 128 escaped bytes, the tag,
// two numbers and the separators.
const maxIDLen = 3*MaxNameLen + tagLen + 2*20 + 3

// ParseID reads an event ID from the right: the sequence, with an optional ".<n>"
// that is ignored, the tag, the stream's token. The error wraps [ErrInvalidID].
// An ID that can be read need not name an event of the log: see [Resolve].
func ParseID(text string) (ID, error) {
	bad := func(why string) (ID, error) { return ID{}, fmt.Errorf("%w: %s", ErrInvalidID, why) }
	if len(text) > maxIDLen {
		return bad("it is too long")
	}
	i := strings.LastIndexByte(text, '_')
	if i < 0 {
		return bad("it has no sequence")
	}
	number := text[i+1:]
	if n, suffix, ok := strings.Cut(number, "."); ok {
		if !digits(suffix) {
			return bad("the part behind the sequence is not a number")
		}
		number = n
	}
	if !digits(number) || len(number) > 1 && number[0] == '0' {
		return bad("the sequence is not a number")
	}
	sequence, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return bad("the sequence is too large")
	}
	rest := text[:i]
	i = strings.LastIndexByte(rest, '_')
	if i < 0 {
		return bad("it has no tag")
	}
	id := ID{Tag: rest[i+1:], Sequence: sequence}
	if len(id.Tag) != tagLen || strings.Trim(id.Tag, "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		return bad("the tag is malformed")
	}
	if token := rest[:i]; token != Flow {
		if id.Stream, err = StreamName(token); err != nil {
			return bad("the stream is malformed")
		}
	}
	return id, nil
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// Verdict is the meaning of an event ID in a partition as it is now.
type Verdict uint8

const (
	// Good means that the ID's sequence is a position in the partition's history.
	Good Verdict = iota
	// Unknown means that the ID belongs to another stream, session, life or log.
	Unknown
	// RolledBack means that the ID belongs to this place, but to events that the
	// partition has lost and since replaced.
	RolledBack
	// MaybeRolledBack means that it is unknown whether the partition has lost the ID's events: its
	// generation is unknown, and was perhaps merged with another one, or the ID is older than
	// all generations on the list but the first.
	MaybeRolledBack
)

// Resolve checks an ID against a place and the partition's generations, oldest
// first; place.Generation is ignored. IDs made before the session was opened, which
// carry no life, are as good as those made after. For RolledBack and MaybeRolledBack it also
// returns the newest sequence that the ID's holder and the partition have in common by the
// list, or 0 when there is none.
func Resolve(id ID, parts TagParts, generations []Generation) (Verdict, uint64) {
	if id.Stream != parts.Stream {
		return Unknown, 0
	}
	verdict := Unknown
	lives := slices.Compact([]string{parts.Life, ""})
	for i, g := range slices.Backward(generations) {
		for _, life := range lives {
			p := parts
			p.Generation, p.Life = g.ID, life
			tag := p.Tag()
			if tag == id.Tag {
				if later := generations[i+1:]; len(later) > 0 && id.Sequence >= end(later) {
					return RolledBack, end(later) - 1
				}
				return Good, 0
			}
			if tag[:placeLen] == id.Tag[:placeLen] {
				verdict = RolledBack
			}
		}
	}
	if verdict == RolledBack {
		return lostGeneration(id, parts.Origin, generations)
	}
	return verdict, 0
}

// lostGeneration judges an ID of a generation that is not on the list. Either the partition was
// rolled back to a copy of the log from before it, or the generation was merged with a later
// one. Such an ID is never good: its generation may itself have followed a roll-back that left
// no trace on the list. If there was none, all entries before the earliest start but the
// origin's are shared. A list without the origin proves nothing.
func lostGeneration(id ID, origin string, generations []Generation) (Verdict, uint64) {
	verdict := RolledBack
	if len(generations) >= MaxGenerations {
		verdict = MaybeRolledBack
	}
	if len(generations) < 2 || generations[0].ID != origin {
		return verdict, 0
	}
	if end := end(generations[1:]); id.Sequence >= end {
		return verdict, end - 1
	}
	return MaybeRolledBack, id.Sequence
}

// MaxGenerations bounds a partition's list of generations, 22 B each in its metadata.
const MaxGenerations = 128

// HasGeneration reports whether a list of generations has one of an ID.
func HasGeneration(generations []Generation, id string) bool {
	return slices.ContainsFunc(generations, func(g Generation) bool { return g.ID == id })
}

// NextGenerations returns a list of generations with more of them. When there are too many,
// the oldest but the origin is merged with the one after it, which begins at the earlier
// of the two starts: so an ID below the earliest start is still good, and no ID of an
// unknown generation above it ever is.
func NextGenerations(generations []Generation, more ...Generation) []Generation {
	next := slices.Concat(generations, more)
	for len(next) > MaxGenerations {
		oldest := next[1]
		next = slices.Delete(next, 1, 2)
		next[1].Start = min(next[1].Start, oldest.Start)
	}
	return next
}

// KeepGenerations returns a list of generations with those that an earlier look at the same partition has
// seen and that are not on it any more: a janitor has overwritten it with an older list, or a new leader lags. Lists
// that have nothing in common are of different logs: they are left as they are.
func KeepGenerations(earlier, generations []Generation) []Generation {
	isKnown := func(g Generation) bool { return HasGeneration(earlier, g.ID) }
	if !slices.ContainsFunc(generations, isKnown) {
		return generations
	}
	if len(earlier) >= MaxGenerations { // and has merged those before the first one that both have
		generations = generations[1+slices.IndexFunc(generations[1:], isKnown):]
	}
	return NextGenerations(earlier, slices.DeleteFunc(slices.Clone(generations), isKnown)...)
}

// Fork compares two lists of generations of one partition, the older look first.
// It returns the newest sequence that the partition surely had at both looks: the
// largest possible one when no generation was begun in between, and 0 when the
// lists have no generation in common.
func Fork(before, after []Generation) uint64 {
	for i, g := range slices.Backward(before) {
		if j := slices.IndexFunc(after, func(other Generation) bool { return other.ID == g.ID }); j >= 0 {
			if first := min(end(before[i+1:]), end(after[j+1:])); first != math.MaxUint64 {
				return first - 1
			}
			return math.MaxUint64
		}
	}
	return 0
}

// end returns the first sequence that a generation does not share with the later ones.
func end(later []Generation) uint64 {
	end := uint64(math.MaxUint64)
	for _, g := range later {
		end = min(end, g.Start)
	}
	return end
}
