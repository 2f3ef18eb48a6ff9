// Package bridge connects an unmodified MCP server to the log: it forwards the messages of
// clients, which arrive over NATS, to the server, and stores the server's messages.
//
// Its packages, each of which imports only those further down:
//
//	bridge     starts, stops, takes over sessions, and dispatches the requests of edges
//	stateless  serves the calls of clients without sessions
//	sessions   has the sessions of clients; mcpserver is their side of the MCP server
//	call       stores the server's messages for a request in the log
//	owners     notes who owns the tasks of the server; standby lets one bridge of a name run
//	host       has the log, the limits and the metrics, which all parts share
//	records    stores the state from which the next bridge continues
//	config, resultcache, translate, upstream (carries messages to the MCP server and back)
//	pause      notes the pauses of the process; retry
package bridge

import (
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/mcpserver"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/standby"
	"rejoin/services/bridge/stateless"
	"rejoin/shared/quota"
)

// Service is the bridge. It is safe for concurrent use.
//
//	New ──▶ Service ── Run ──▶ receive: takes the requests of edges from NATS, a goroutine for each
//	                   │         ├─ open ──▶ sessions.Session
//	                   │         ├─ Request ──▶ stateless.Calls
//	                   │         └─ Post, End, Check, Cancel ──▶ its session
//	                   ├─────▶ records: writes down the open streams, for the next bridge
//	                   ├─────▶ serveOpenCalls: tells the janitor which sessions have open calls
//	                   ├─────▶ name: checks which bridge has the name, see [standby.Name]
//	                   ├─────▶ reconcile: ends sessions that were ended elsewhere
//	                   └─────▶ the goroutines of the sessions, see [sessions.Session]
//
// When Run's context ends, the bridge takes no new requests; then life ends, and with it all
// waiting for the upstream, which gets no notice: the next bridge continues.
type Service struct {
	host      *host.Host
	server    *mcpserver.Server
	table     *sessions.Table
	stateless *stateless.Calls

	records *records.Bucket // from the start of Run on
	name    *standby.Name   // likewise

	inbox    chan *nats.Msg // of all subscriptions; full: NATS drops, and edges get no answer
	handling *quota.Pool    // requests of edges that are not answered yet

	taken atomic.Bool // the sessions of the previous bridge are taken over
}
