// Package bridge connects an unmodified MCP server to the log: it hands over what
// clients send, which comes on NATS, and stores what the server sends.
//
// Its packages, each of which imports only those further down:
//
//	bridge     starts, stops, takes over sessions, and hands on what edges ask
//	stateless  serves the calls of clients without sessions
//	sessions   has the sessions of clients; mcpserver is their side of the MCP server
//	call       takes what the server sends for a request into the log
//	owners     notes whose the tasks of the server are; standby lets one bridge of a name run
//	host       has what all parts share
//	records    is what the next bridge continues from
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
//	New ──▶ Service ── Run ──▶ receive: takes what edges ask from NATS, a goroutine for each
//	                   │         ├─ open ──▶ sessions.Session
//	                   │         ├─ Request ──▶ stateless.Calls
//	                   │         └─ Post, End, Check, Cancel ──▶ its session
//	                   ├─────▶ records: writes down what is open, for the next bridge
//	                   ├─────▶ serveOpenCalls: tells the janitor which sessions have open calls
//	                   ├─────▶ name: looks whose the bridge's name is, see [standby.Name]
//	                   ├─────▶ reconcile: ends sessions that were ended elsewhere
//	                   └─────▶ what the sessions run, see [sessions.Session]
//
// When Run's context ends, edges are answered no more; then life ends, and with it all
// waiting for the upstream, which is not told: the next bridge continues.
type Service struct {
	host      *host.Host
	server    *mcpserver.Server
	table     *sessions.Table
	stateless *stateless.Calls

	records *records.Bucket // from the start of Run on
	name    *standby.Name   // likewise

	inbox    chan *nats.Msg // of all subscriptions; full: NATS drops, and edges hear nothing
	handling *quota.Pool    // edges that are not answered yet

	taken atomic.Bool // the sessions of the bridge before are taken over
}
