package records

import (
	"encoding/json"

	"rejoin/services/bridge/translate"
)

// OwnSession is the registry's state of a session at a server that has no sessions.
type OwnSession struct {
	Client     translate.Client     `json:"client"`
	Discovered translate.Discovered `json:"discovered"`
	Level      string               `json:"level,omitempty"` // of log messages; empty for none
	URIs       []string             `json:"uris,omitempty"`  // of the resources that the client subscribed to
}

// OneCall is the registry's state of the one call of a session: the next bridge needs it to
// continue the call at a server of earlier revisions.
type OneCall struct {
	Method   string          `json:"method"`
	Token    json.RawMessage `json:"progressToken,omitempty"`
	LogLevel string          `json:"logLevel,omitempty"`
	Server   json.RawMessage `json:"serverInfo,omitempty"`
	Task     bool            `json:"task,omitempty"`    // it may become a task
	Asks     map[string]bool `json:"asks,omitempty"`    // the methods that its client can be asked
	Content  string          `json:"content,omitempty"` // the same for the requests that its client repeats with answers
}

// Metadata is the metadata of a bridge's session in the registry.
type Metadata struct {
	MCP struct {
		// Bridge is the name of the bridge that holds the session.
		Bridge string `json:"bridge"`
		// Upstream is the MCP server's own name of the session; empty when it has none.
		Upstream string `json:"upstream,omitempty"`
		// ProtocolVersion is the revision that client and server agreed on.
		ProtocolVersion string `json:"protocolVersion,omitempty"`
		// Own is the bridge's state of a session at a server that has none.
		Own *OwnSession `json:"modern,omitempty"`
		// Call is the call of a session that has one call, of a revision without sessions; nil for other sessions.
		Call *OneCall `json:"call,omitempty"`
	} `json:"mcp"`
	// Retention is the retention that the session asks for; see [session.Retention]. Nil for none.
	Retention *Retention `json:"retention,omitempty"`
}

// Retention is the part of [session.Retention] that a bridge asks for, in seconds.
type Retention struct {
	// IdleAfter is that of a session with a process: many clients end without a DELETE, and each
	// would keep its process for --idle-after.
	IdleAfter int64 `json:"idleAfter,omitempty"`
	// KeepClosed is that of a session of one call: no client knows its name, so it need not be kept
	// for longer than a client may reconnect for the response.
	KeepClosed int64 `json:"keepClosed,omitempty"`
}

// CallAt is the part of [Metadata] about a call, as the next bridge needs it.
type CallAt struct {
	Upstream        string  `json:"upstream,omitempty"`
	ProtocolVersion string  `json:"protocolVersion,omitempty"`
	Call            OneCall `json:"call"`
}
