// Package eventlog is the only place that knows JetStream: it creates and opens
// the log, publishes to it, tails and reads it, and deletes from it.
//
// A log is P JetStream streams, its partitions, named MCP_0 to MCP_<P-1>. What
// the whole log must agree on (the number of partitions, the retention limits,
// the layout's version) is kept in the metadata of MCP_0; each partition keeps
// its own generations in its own metadata.
//
// A [Log] is safe for concurrent use. It watches its partitions in one goroutine,
// which [Log.Close] ends and waits for.
package eventlog
