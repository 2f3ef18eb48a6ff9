// Package session is the registry of sessions, and of streams that were closed,
// in the NATS key-value bucket MCP_SESSIONS.
//
// Every write is a compare-and-set. A [Registry] keeps a copy of the bucket in
// memory, which follows the bucket within milliseconds; what has to be true at
// the moment of asking is asked of the bucket's leader. It is safe for concurrent
// use.
package session
