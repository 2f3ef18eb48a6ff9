package rpc

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"

	"rejoin/shared/event"
)

// ErrID is returned for request IDs that are no string and no number, or too long for
// the name of a stream.
var ErrID = errors.New("the request ID must be a string or a number of at most 100 characters")

// uniqueBytes are the characters of a stream's name that tell it from all others of
// the session: 60 bits, since clients use IDs again.
const uniqueBytes = 12

// NewStream returns a name for the stream that gets the responses to requests with
// these IDs, a number or string each, as in JSON; batch says that they were in an array.
// The name holds the IDs, so that an edge can report their end to a client when all events of
// the stream are deleted: <unique>-7, <unique>-"a" or <unique>-[7,"a"].
//
// The error is [ErrID].
func NewStream(ids []json.RawMessage, batch bool) (string, error) {
	names := make([]string, len(ids))
	for i, id := range ids {
		name, err := visible(id)
		if err != nil {
			return "", err
		}
		names[i] = name
	}
	text := strings.Join(names, ",")
	if batch {
		text = "[" + text + "]"
	}
	stream := strings.ToLower(rand.Text()[:uniqueBytes]) + "-" + text
	if len(ids) == 0 || event.CheckStream(stream) != nil {
		return "", ErrID
	}
	return stream, nil
}

// RequestIDs returns the IDs in a stream's name, and whether they were in an array.
// A name that is not from [NewStream] has no IDs.
func RequestIDs(stream string) (ids []json.RawMessage, batch bool) {
	if len(stream) <= uniqueBytes || stream[uniqueBytes] != '-' || strings.Contains(stream[:uniqueBytes], "-") {
		return nil, false
	}
	text := []byte(stream[uniqueBytes+1:])
	if batch = bytes.HasPrefix(text, []byte("[")); !batch {
		text = fmt.Appendf(nil, "[%s]", text)
	}
	if json.Unmarshal(text, &ids) != nil {
		return nil, false
	}
	for _, id := range ids {
		if _, err := visible(id); err != nil {
			return nil, false
		}
	}
	return ids, batch
}

// visible writes an ID with visible ASCII alone: the same string, or the number as it is.
func visible(id json.RawMessage) (string, error) {
	id = bytes.TrimSpace(id)
	switch {
	case len(id) == 0 || !json.Valid(id):
		return "", ErrID
	case id[0] == '-' || '0' <= id[0] && id[0] <= '9':
		return string(id), nil
	case id[0] != '"':
		return "", ErrID
	}
	var text string
	if err := json.Unmarshal(id, &text); err != nil {
		return "", ErrID
	}
	b := []byte{'"'}
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case '!' <= r && r <= '~':
			b = append(b, byte(r))
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				b = fmt.Appendf(b, `\u%04x`, unit)
			}
		}
	}
	return string(append(b, '"')), nil
}
