// Package session is the registry of sessions: their names, their owners, and whether they
// take messages.
//
// The log decides. A session is opened by an entry of the log, which names its life, owner
// and metadata, and ends with entries of the log that every publish is fenced on
// ([eventlog.Log.OpenSession], [eventlog.Log.EndSession]). The [Registry] is an index of
// that, in the NATS key-value bucket MCP_SESSIONS: it makes lists and answers fast, and
// each process keeps a copy of it in memory, which follows the bucket within milliseconds.
// The log confirms each denial of the registry (there is no such session, it has ended, it
// belongs to another owner); the fence of each publish checks each permission.
// A registry that is lost or older than the log is written again from the log.
package session
