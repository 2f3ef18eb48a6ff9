package edge

import (
	"bytes"
	"slices"
	"strings"

	"rejoin/services/sse-edge/cursor"

	"rejoin/services/sse-edge/window"

	"rejoin/shared/event"
)

// filter says which events one client is shown, by what their messages are. It hides
// events and nothing else: cursors move over what is hidden, and gaps and ends are told
// as without it. Nil shows everything.
type filter struct {
	// text is the same for equal filters.
	text string
	// methods are those that a message must have one of; "x*" is every one that begins
	// with x. None: any message, with a method or not.
	methods []string
	// level is the lowest of [event.Levels] that a log message must have. Other messages,
	// and those whose level cannot be read, are shown whatever it is.
	level int
}

// name returns the filter's text; empty for the one that shows everything.
func (f *filter) name() string {
	if f == nil {
		return ""
	}
	return f.text
}

// show leaves in a step what the filter shows.
func (f *filter) show(s *cursor.Step) {
	if f != nil {
		s.Items = slices.DeleteFunc(s.Items, func(it window.Item) bool { return !f.shows(it.Frame) })
	}
}

// shows reports whether the filter shows the event of a frame.
func (f *filter) shows(frame []byte) bool {
	_, message := window.FrameParts(frame)
	method := event.MethodOf(message)
	if len(f.methods) > 0 && !slices.ContainsFunc(f.methods, func(pattern string) bool { return matches(pattern, method) }) {
		return false
	}
	if f.level == 0 || string(method) != event.MethodLog {
		return true
	}
	level, ok := event.LevelOf(message)
	return !ok || level >= f.level
}

// matches reports whether a method is the one that a pattern names, or one of them. No
// pattern matches nil, which is no method.
func matches(pattern string, method []byte) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return method != nil && bytes.HasPrefix(method, []byte(prefix))
	}
	return string(method) == pattern
}
