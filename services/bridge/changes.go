package bridge

import (
	"strings"

	"rejoin/shared/rpc"
)

// changedSubject is where bridges tell each other that results of the MCP server are stale: a client
// that has heard of it through one bridge may ask the next. A name's token has no "=c".
const changedSubject = "mcp.rpc.b.=changed"

// noteChange ends the cached results, here and at the other bridges, that a notification of the MCP
// server says are stale. On one connection the bridges' message goes ahead of the notification's event, so
// it arrives ahead of the request of a client that has received that. It may get lost: then the
// results end with their time.
func (h *host) noteChange(m rpc.Message) {
	if h.cache == nil || m.Method == nil || !h.cache.Changed(*m.Method) {
		return
	}
	if err := h.backend.Conn.Publish(changedSubject, []byte(*m.Method+" "+h.name)); err != nil {
		h.log.Info("other bridges are not told that results have changed", "error", err)
	}
}

// hearChange takes what another bridge, or this one, has sent with noteChange.
func (h *host) hearChange(data string) {
	if method, from, _ := strings.Cut(data, " "); h.cache != nil && from != h.name {
		h.cache.Changed(method)
	}
}
