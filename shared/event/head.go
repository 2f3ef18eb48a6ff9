package event

import (
	"bytes"
	"encoding/json"
	"slices"
)

// MethodLog is the notification that carries a log message (MCP 2025-11-25, Logging).
const MethodLog = "notifications/message"

// Levels are the severities of log messages, the lowest first (RFC 5424, 6.2.1, as MCP
// names them).
var Levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// MethodOf returns the method of a message, and nil when it has none, as a response. data
// must be valid JSON; only the members before the method, or before a response's result
// or error, are read. It does not copy, unless the method is escaped.
func MethodOf(data []byte) []byte { return text(member(data, "method", "result", "error")) }

// LevelOf returns the place in [Levels] of a log message's level. data must be valid JSON,
// and the message one of [MethodLog].
func LevelOf(data []byte) (level int, ok bool) {
	level = slices.Index(Levels, string(text(member(member(data, "params"), "level"))))
	return level, level >= 0
}

// member returns the value of an object's first member with a name, and nil when there is
// none before the members in until. A value that is no object has no members.
func member(object []byte, name string, until ...string) []byte {
	s := scanner{data: object}
	for written := range s.names {
		key := text(written)
		if string(key) == name {
			return s.value()
		}
		if slices.Contains(until, string(key)) {
			return nil
		}
	}
	return nil
}

// text returns the text of a JSON string, and nil when the value is none.
func text(value []byte) []byte {
	if len(value) == 0 || value[0] != '"' {
		return nil
	}
	if bytes.IndexByte(value, '\\') < 0 {
		return value[1 : len(value)-1]
	}
	var s string
	if json.Unmarshal(value, &s) != nil {
		return nil
	}
	return []byte(s)
}
