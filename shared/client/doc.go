// Package client publishes to Rejoin and subscribes to it, and hides that
// connections break.
//
// A [Subscriber] is an endless loop over the events of a stream, or of all streams
// of a session. It reconnects by itself, goes on exactly behind the event that it
// yielded last, and tells a [Gap] when events in between no longer exist. Its
// cursor is text that a program may save, to go on there in another life.
//
// A [Publisher] stores messages in the order in which they were published to
// their stream. It sends many in one request, repeats what did not get through
// with the same idempotency key, and reports a message as stored only after the
// server has said so.
package client
