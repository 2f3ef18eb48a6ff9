// Package client publishes to Rejoin and subscribes to it, and hides that
// connections break.
//
// A [Subscriber] is an endless loop over the events of a stream, or of all streams
// of a session. It reconnects by itself, resumes exactly after the last event that it
// yielded, and reports a [Gap] when events in between no longer exist. Its
// cursor is text that a program may save, to resume there after a restart.
//
// A [Publisher] stores messages in the order in which they were published to
// their stream. It sends many in one request, repeats a request without an answer
// with the same idempotency key, and reports a message as stored only after the
// server has acknowledged it.
package client
