package cursor

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"rejoin/shared/event"
)

// GroupID is an event ID of a connection that follows several places: a position in each of
// their partitions.
//
//	group_<names><lives>_<partition>.<tag>.<sequence>_<partition>.<tag>.<sequence>-<added>
//
// All but the tags is in base 36.
// With 16 partitions it takes up to about 350 bytes, and some 20 more with each further one.
type GroupID struct {
	// Names is a checksum of the places, Lives one of their lives.
	Names, Lives uint32
	// At has the position in each partition, by its number.
	At map[int]GroupPosition
}

// GroupPosition is how far a partition was delivered, in the generation of a tag.
type GroupPosition struct {
	Tag      string
	Sequence uint64
	// Added is the position of places that were added, while they are behind; else it is Sequence.
	Added uint64
}

const (
	groupPrefix = "group_"
	sumLen      = 7 // of a checksum, in base 36
	// maxGroupIDLen bounds the texts that ParseGroupID reads.
	maxGroupIDLen = 8 << 10
)

// GroupIDLen returns how long an ID of places in so many partitions becomes, with sequences up to some
// two billion, of which each partition may have two.
func GroupIDLen(partitions int) int {
	return len(groupPrefix) + 2*sumLen + partitions*len("_nn.ttttttt.ssssss-ssssss")
}

// ParseGroupID reads a GroupID. A ".<n>" at its end is ignored, as in other event IDs. The error
// wraps [event.ErrInvalidID].
func ParseGroupID(text string) (GroupID, error) {
	bad := func(why string) (GroupID, error) { //nolint:unparam // for the callers
		return GroupID{}, fmt.Errorf("%w: %s", event.ErrInvalidID, why)
	}
	rest, ok := strings.CutPrefix(text, groupPrefix)
	if !ok || len(text) > maxGroupIDLen {
		return bad("it is not one of several sessions")
	}
	sums, rest, _ := strings.Cut(rest, "_")
	if len(sums) != 2*sumLen {
		return bad("it has no checksums")
	}
	names, err1 := strconv.ParseUint(sums[:sumLen], 36, 32)
	lives, err2 := strconv.ParseUint(sums[sumLen:], 36, 32)
	if err1 != nil || err2 != nil {
		return bad("its checksums cannot be read")
	}
	id := GroupID{Names: uint32(names), Lives: uint32(lives), At: map[int]GroupPosition{}}
	for part := range strings.SplitSeq(rest, "_") {
		fields := strings.Split(part, ".")
		if len(fields) < 3 || len(fields) > 4 {
			return bad("a position cannot be read")
		}
		number, err1 := strconv.ParseUint(fields[0], 36, 16)
		text, added, behind := strings.Cut(fields[2], "-")
		sequence, err2 := strconv.ParseUint(text, 36, 64)
		at := GroupPosition{fields[1], sequence, sequence}
		if behind {
			var err error
			at.Added, err = strconv.ParseUint(added, 36, 64)
			err2 = errors.Join(err2, err)
		}
		if err1 != nil || err2 != nil || at.Added > at.Sequence {
			return bad("a position is not a number")
		}
		id.At[int(number)] = at
	}
	return id, nil
}

// appendGroupSums appends the beginning of the text of a GroupID.
func appendGroupSums(b []byte, names, lives uint32) []byte {
	b = append(b, groupPrefix...)
	for _, sum := range [...]uint32{names, lives} {
		text := strconv.FormatUint(uint64(sum), 36)
		b = append(append(b, "0000000"[:sumLen-len(text)]...), text...)
	}
	return b
}

// appendGroupPosition appends the position in one partition.
func appendGroupPosition(b []byte, partition int, at GroupPosition) []byte {
	b = strconv.AppendInt(append(b, '_'), int64(partition), 36)
	b = append(append(append(b, '.'), at.Tag...), '.')
	if b = strconv.AppendUint(b, at.Sequence, 36); at.Added < at.Sequence {
		b = strconv.AppendUint(append(b, '-'), at.Added, 36)
	}
	return b
}

// partitionTag is the tag of positions in a partition; see [event.TagParts.Tag].
func partitionTag(origin, generation string) string {
	return event.TagParts{Origin: origin, Generation: generation, Stream: "="}.Tag()
}

// checksum returns the number that a place adds to a checksum of a GroupID.
func checksum(fields ...string) uint32 {
	h := sha256.New()
	for _, f := range fields {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(f)))) // a hash takes everything
		_, _ = h.Write([]byte(f))
	}
	return binary.BigEndian.Uint32(h.Sum(nil))
}
