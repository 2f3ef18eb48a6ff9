// Package eventlog is the log: the only package that reads and writes its JetStream
// streams. DESIGN.md explains the terms.
//
// A log is P JetStream streams, its partitions, named MCP_0 to MCP_<P-1>. The
// metadata of MCP_0 holds what the whole log must agree on (the number of partitions,
// the retention limits, the layout's version); the metadata of each partition holds
// its generations, its servers and what a janitor found missing.
//
//	Create, Open, OpenToShow   the log, its settings, and a look at each partition (State)
//	Publish, Series       events, each fenced on the end of its stream; births
//	AwaitGeneration       for who publishes straight to JetStream
//	OpenSession, EndStream, EndSession, ClearStream   control entries
//	Tail, Scan, Read      entries, by one ordered consumer each; a Feed shares one
//	RemovedAfter          what was removed after a cursor, as trims, floor and births say
//	BeginGeneration, Announce, Rewrite, Delete, Purge, MakeRoom, SetLimits, SetChecked   for the acting janitor alone
//
// A [Log] is safe for concurrent use. It has two goroutines, and in a cluster one for each fence
// that events wait for; [Log.Close] waits for these. A series in a cluster has one of its own,
// which ends when nothing waits.
package eventlog

import "errors"

var (
	// ErrNotFound is returned when the log, or an event of it, is not there.
	ErrNotFound = errors.New("not found in the log")

	// ErrMismatch is returned when what is stored is not a log of this program's
	// version and layout.
	ErrMismatch = errors.New("the stored log does not match")

	// ErrInvalidSettings is returned when a log's settings make no sense.
	ErrInvalidSettings = errors.New("invalid log settings")

	// ErrUnavailable is returned when the log could not be reached and nothing was done.
	ErrUnavailable = errors.New("the log cannot be reached")

	// ErrUnknown is returned when the answer to a publish did not come: it may be
	// stored now or later, or not.
	ErrUnknown = errors.New("the log did not answer")

	// ErrSeriesFailed is returned for an event of a [Series] after one that is not stored, or of
	// which that is not known. It comes with [ErrUnavailable].
	ErrSeriesFailed = errors.New("an event before it in its series failed")

	// ErrClosed is returned for an event or a birth of a stream or session that has ended: JetStream
	// refused it because of its fence, and did not store it.
	ErrClosed = errors.New("the stream or session has ended")

	// ErrConflict is returned for a control entry that JetStream did not store because its subject
	// has another newest entry than the one that it was to follow, or has one at all (compare-and-set).
	ErrConflict = errors.New("another entry has the subject")

	// ErrExists is returned when a session that is to be opened has an opening already.
	ErrExists = errors.New("the session has an opening")

	// ErrFull is returned when the log refused an event for lack of space.
	ErrFull = errors.New("the log is full")

	// ErrTooLarge is returned when an event is larger than the log allows.
	ErrTooLarge = errors.New("the event is too large for the log")
)
