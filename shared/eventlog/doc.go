// Package eventlog is the log: the only package that reads and writes its JetStream
// streams. DESIGN.md explains the terms.
//
// A log is P JetStream streams, its partitions, named MCP_0 to MCP_<P-1>. The
// metadata of MCP_0 holds what the whole log must agree on (the number of partitions,
// the retention limits, the layout's version); the metadata of each partition holds
// its generations, its servers and what a janitor found missing.
//
//	Create, Open          the log, its settings, and a look at each partition (State)
//	Publish, Series       events, each fenced on the end of its stream; births
//	OpenSession, EndStream, EndSession, ClearStream   control entries
//	Tail, Scan, Read      entries, by one ordered consumer each; a Feed shares one
//	Missing               what was removed after a cursor, as trims, floor and births say
//	BeginGeneration, Announce, Rewrite, Purge, SetLimits, SetChecked   for the acting janitor alone
//
// A [Log] is safe for concurrent use. It watches its partitions in one goroutine,
// which [Log.Close] ends and waits for.
package eventlog
