package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// Retention has a session's own limits from its metadata, in the member
// "retention":
//
//	{"retention": {"maxEvents": 500, "maxBytes": 1048576, "maxStreams": 20, "idleAfter": 3600, "keepClosed": 3600}}
//
// idleAfter and keepClosed are in seconds. -1 is no limit, except for keepClosed; a member that is absent
// is 0 here. [Within] applies the operator's limits.
type Retention struct {
	MaxEvents, MaxBytes, MaxStreams int64
	// IdleAfter is in whole seconds.
	IdleAfter time.Duration
	// KeepClosed is how long events and name are kept once the session is closed, in whole seconds.
	KeepClosed time.Duration
}

// longest bounds idleAfter and keepClosed: a hundred years.
const longest = 100 * 365 * 24 * 3600

// ParseRetention reads the member retention of a session's metadata, an object or nothing. The error
// wraps [ErrRetention]. The members that can be read are returned with it: a later version, which
// has accepted the metadata, may know more of them.
func ParseRetention(metadata json.RawMessage) (Retention, error) {
	if len(metadata) == 0 {
		return Retention{}, nil
	}
	if !mentionsRetention(metadata) {
		if !json.Valid(metadata) {
			return Retention{}, fmt.Errorf("%w: the metadata is not JSON", ErrRetention)
		}
		return Retention{}, nil
	}
	members := map[string]json.RawMessage{} // a struct would take names in any case
	if err := json.Unmarshal(metadata, &members); err != nil {
		return Retention{}, fmt.Errorf("%w: %w", ErrRetention, err)
	}
	said, ok := members["retention"]
	if !ok {
		return Retention{}, nil
	}
	limits := map[string]json.RawMessage{}
	if err := json.Unmarshal(said, &limits); err != nil || said[0] != '{' {
		return Retention{}, fmt.Errorf("%w: it must be an object", ErrRetention)
	}
	var r Retention
	var idle, keep int64
	var err error
	known := map[string]*int64{"maxEvents": &r.MaxEvents, "maxBytes": &r.MaxBytes, "maxStreams": &r.MaxStreams, "idleAfter": &idle, "keepClosed": &keep}
	for name, value := range limits {
		to, ok := known[name]
		if !ok {
			err = fmt.Errorf("%w: it may have the members maxEvents, maxBytes, maxStreams, idleAfter and keepClosed, and no others", ErrRetention)
			continue
		}
		switch bad := json.Unmarshal(value, to); {
		case bad != nil || *to == 0 || *to < -1:
			err = fmt.Errorf("%w: %s must be a positive whole number, or -1 for no limit", ErrRetention, name)
		case (to == &idle || to == &keep) && *to > longest:
			err = fmt.Errorf("%w: idleAfter and keepClosed may be up to %d", ErrRetention, longest)
		case to == &keep && keep < 0:
			err = fmt.Errorf("%w: keepClosed must be a positive whole number", ErrRetention)
		default:
			continue
		}
		*to = 0
	}
	r.KeepClosed = time.Duration(keep) * time.Second
	if r.IdleAfter = time.Duration(idle) * time.Second; idle < 0 {
		r.IdleAfter = -1
	}
	return r, err
}

// mentionsRetention reports whether metadata may be an object with the member retention, whose
// name may be written with escapes, or be no object. It spares most metadata from being decoded.
func mentionsRetention(metadata []byte) bool {
	return metadata[0] != '{' || bytes.Contains(metadata, []byte("retention")) || bytes.IndexByte(metadata, '\\') >= 0
}

// Within returns the limit of a session that asks for one: it may always be smaller
// than the common limit, and larger up to the most that the operator allows. most
// is 0 when that is no more than the common limit. -1 is no limit; asked is 0 for a
// session that asks for no limit.
func Within[T ~int64](asked, all, most T) T {
	if asked == 0 {
		return all
	}
	if most == 0 || larger(all, most) {
		most = all
	}
	if larger(asked, most) {
		return most
	}
	return asked
}

func larger[T ~int64](a, b T) bool { return b >= 0 && (a < 0 || a > b) }

// StreamsOverride is the flag of the services that count a session's streams.
type StreamsOverride struct {
	// MaxStreamsOverride is how many open streams a session's metadata may ask for; -1 is
	// any number. Default: 0, which is no more than the log's limit.
	MaxStreamsOverride int64 `default:"0" help:"Maximum open streams that the metadata of a session may request beyond the log's limit; -1 for unlimited, 0 for no more than that limit; use the same value for ingest and janitor." placeholder:"N"`
}

// Validate returns an error that names the flag when its value makes no sense.
func (o StreamsOverride) Validate() error {
	if o.MaxStreamsOverride < -1 {
		return fmt.Errorf("--max-streams-override must be -1 or more, not %d", o.MaxStreamsOverride)
	}
	return nil
}

// Limit returns how many open streams a session may have; all is the log's limit.
func (o StreamsOverride) Limit(asked Retention, all int64) int64 {
	return Within(asked.MaxStreams, all, o.MaxStreamsOverride)
}
