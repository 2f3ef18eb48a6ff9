package delivery

import (
	"bytes"
	"slices"
	"strings"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
)

// Filter selects the events that one client is shown, by their messages. It hides
// only events: cursors move over hidden ones, and gaps and ends are reported as
// without it. Nil shows all events.
type Filter struct {
	// Text is the same for equal filters.
	Text string
	// Methods are the methods of which a message must have one; "x*" is every one that begins
	// with x. None: any message, with a method or not.
	Methods []string
	// Level is the lowest of [event.Levels] that a log message must have. Other messages,
	// and those whose level cannot be read, are shown whatever it is.
	Level int
	// Since is the time of the oldest event that is shown, in nanoseconds since 1970.
	Since int64
}

// name returns the filter's text; empty for the one that shows all events.
func (f *Filter) name() string {
	if f == nil {
		return ""
	}
	return f.Text
}

// show leaves in a step the events that the filter shows.
//
// It hides after the read: the cursor, resumesAt and the first block are those of the
// unfiltered view.
func (f *Filter) show(s *cursor.Step) {
	if f != nil {
		s.Items = slices.DeleteFunc(s.Items, func(it window.Item) bool { return !f.Shows(&it) })
	}
}

// IsOld reports whether the filter hides an event for its age.
func (f *Filter) IsOld(it *window.Item) bool { return f != nil && it.Time < f.Since }

// Shows reports whether the filter shows an event.
func (f *Filter) Shows(it *window.Item) bool {
	if f.IsOld(it) {
		return false
	}
	if len(f.Methods) == 0 && f.Level == 0 {
		return true
	}
	_, message := window.FrameParts(it.Frame)
	method := event.MethodOf(message)
	if len(f.Methods) > 0 && !slices.ContainsFunc(f.Methods, func(pattern string) bool { return matches(pattern, method) }) {
		return false
	}
	if f.Level == 0 || string(method) != event.MethodLog {
		return true
	}
	level, ok := event.LevelOf(message)
	return !ok || level >= f.Level
}

// matches reports whether a method is the one that a pattern names, or one of them. No
// pattern matches nil, which is no method.
func matches(pattern string, method []byte) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return method != nil && bytes.HasPrefix(method, []byte(prefix))
	}
	return string(method) == pattern
}
