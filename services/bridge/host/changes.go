package host

import (
	"strings"

	"rejoin/shared/rpc"
)

// ChangedSubject is where bridges tell each other that results of the MCP server are stale: a client
// that has heard of it through one bridge may ask the next. A name's token has no "=c".
const ChangedSubject = "mcp.rpc.b.=changed"

// NoteChange ends the cached results, here and at the other bridges, that a notification of the MCP
// server says are stale. On one connection the bridges' message goes ahead of the notification's event, so
// it arrives ahead of the request of a client that has received that. It may get lost: then the
// results end with their time.
func (h *Host) NoteChange(m rpc.Message) {
	if h.Cache == nil || m.Method == nil || !h.Cache.Changed(*m.Method) {
		return
	}
	if err := h.Backend.Conn.Publish(ChangedSubject, []byte(*m.Method+" "+h.Name)); err != nil {
		h.Logger.Info("other bridges are not told that results have changed", "error", err)
	}
}

// HearChange takes what another bridge, or this one, has sent with NoteChange.
func (h *Host) HearChange(data string) {
	if method, from, _ := strings.Cut(data, " "); h.Cache != nil && from != h.Name {
		h.Cache.Changed(method)
	}
}
