// Package mcpstore keeps the event streams of a server built on the MCP Go SDK in
// Rejoin's log: a [Store] is an [mcp.EventStore] whose events outlive connections, NATS and
// the server's process.
//
// The SDK's handler keeps sessions in the memory of its process. So a client resumes at the
// replica that has its session, to which a proxy must route by Mcp-Session-Id, and another
// replica, or the same one after a restart, answers 404. The bridge has no such limit.
//
// The SDK counts a stream's events itself, one for each call of Append, whether or not
// that succeeds; an event ID is a stream and such an index. So every event is stored
// with its index, and an index whose event was not stored is missing from the log:
//
//	Append 0   Append 1   Append 2 ✗   Append 3
//	[0.w]      [1.w]                   [3.w]         After(0): error, 2 is missing
//	                                                 After(2): 3
//	Append 0   Append 1 ✗                            After(0): error
//	[0.w]      [1.w.lost]   a note by the mender, for other processes
//
// After reads the whole stream, and answers with all events after an index or with
// an error, never with a part. w is the writer, a random name for each time that a
// store begins to write a stream: when an earlier writer continues after a later one, two
// replicas have counted in parallel, and the event of an index is not known any more.
package mcpstore
