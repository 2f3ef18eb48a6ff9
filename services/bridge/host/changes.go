package host

import (
	"strings"

	"rejoin/shared/rpc"
)

// ChangedSubject is where bridges report to each other that results of the MCP server are stale: a client
// that has received this through one bridge may ask the next. A name's token has no "=c".
const ChangedSubject = "mcp.rpc.b.=changed"

// NoteChange ends the cached results, here and at the other bridges, that a notification of the MCP
// server reports as stale. On one connection the bridges' message precedes the notification's event, so
// it arrives before the request of a client that has received the event. The message may get lost: then
// the results expire.
func (h *Host) NoteChange(m rpc.Message) {
	if h.Cache == nil || m.Method == nil || !h.Cache.Changed(*m.Method) {
		return
	}
	if err := h.Backend.Conn.Publish(ChangedSubject, []byte(*m.Method+" "+h.Name)); err != nil {
		h.Logger.Info("changed results are not reported to other bridges", "error", err)
	}
}

// HearChange handles a message that NoteChange of another bridge, or of this one, has sent.
func (h *Host) HearChange(data string) {
	if method, from, _ := strings.Cut(data, " "); h.Cache != nil && from != h.Name {
		h.Cache.Changed(method)
	}
}
