// Package cases has all cases of the benchmark, from the latency of one event to logs of millions:
// each starts its systems, puts a load on them, and returns figures.
package cases

import (
	"context"

	"rejoin/bench/mcp"
	"rejoin/bench/measure"
	"rejoin/bench/system"
)

// Case is one case of a group: Run measures it once.
type Case struct {
	Group, Name string
	What        string
	Run         func(ctx context.Context, p *system.Programs) (measure.Figures, error)
}

// All returns the cases in the order in which they run.
func All() []Case {
	return []Case{
		{"latency", "latency", "one stream, 100 clients, 200 events/s of 512 B: time from publish to client", latency},
		{"publish", "publish", "64 clients publish 512 B in a request each; NDJSON in one request", publish},
		{"client", "client", "the Go client: a publisher on one stream and on 64, a subscriber; 512 B", goClient},
		{"fan-out", "fanout-100", "one stream, 100 clients, 512 B", fanout(100)},
		{"fan-out", "fanout-1000", "one stream, 1,000 clients, 512 B", fanout(1000)},
		{"fan-out", "fanout-5000", "one stream, 5,000 clients, 512 B", fanout(5000)},
		{"many", "many", "5,000 streams with one client each, 5,000 events/s of 512 B", many},
		{"idle", "idle-9000", "9,000 connections on 9,000 streams, nothing happens", idle(9000)},
		{"idle", "idle-18000", "18,000 connections on 18,000 streams, nothing happens", idle(18000)},
		{"storm", "storm-window", "10,000 clients come back at once, each 50 events behind; the window has all 1,000,000", stormInWindow},
		{"storm", "storm-log", "the same, with a window of a tenth of the log", stormBelow},
		{"slow", "slow", "1,000 clients that stopped reading beside 1,000 healthy ones, 20,000 deliveries/s to the healthy", slow},
		{"retention", "removal", "1,000 closed sessions of 10,000, of 100 events each, are removed beside a client that publishes 2,000 events/s", removal},
		{"retention", "limits", "one session of 50 streams, 5,000 events/s of 512 B for a minute: how long it holds more than its limits", limitsCase},
		{"retention", "ledger", "a janitor starts on 1,000,000 events of 512 B in 10,000 streams", ledgerCase},
		{"mcp", "mcp-calls", "a tool call that returns at once, through edge, log and bridge and to the MCP server alone: one after the other, and 16 clients at once", mcp.Calls},
		{"mcp", "mcp-modern", "a tool call of a client of 2026-07-28 that returns at once, before a server of that revision, before one of 2025-11-25, and at each alone", mcp.Stateless},
		{"mcp", "mcp-sessions", "1,000 sessions with a tool call of 50 steps each through two edges; one of them is killed and started again, then the bridge loses NATS for 2 s", mcp.Sessions},
		{"cold", "cold", "an edge that follows all partitions starts on 1,000,000 events of 512 B", cold},
		{"replicas", "replicas", "publish, fan-out to 1,000 and 10,000 resumes with a log on one NATS server, and on three that share the machine", replicas},
		{"scale", "scale-log", "an edge starts, and 10,000 clients resume two events behind, on 1, 3 and 10 million events of 512 B", scaleLog},
		{"scale", "scale-edges", "200,000 events of 512 B with 160 idle subscribers at one edge and at eight; the first reader of a partition; 10,000 clients that come back to another edge", scaleEdges},
		{"scale", "scale-janitors", "100,000 sessions with 4,000,000 events, which one janitor keeps, and two share; one of them is killed", scaleJanitors},
		{"scale", "scale-streams", "1,000,000 streams of 100,000 sessions, with two events each: what each service takes, starts, lists, sweeps, reads", scaleNames},
	}
}
