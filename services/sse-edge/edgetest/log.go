// Package edgetest has a log for tests of the edge's packages, in which the test is the janitor,
// and clients.
package edgetest

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// Log is a log on a server of its own. Its methods fail the test; most are about its first partition.
type Log struct {
	Server  *natstest.Server
	Backend *backend.Backend
	t       *testing.T
}

// NewLog creates a log, until the test ends.
func NewLog(t *testing.T) *Log {
	t.Helper()
	return NewLogOf(t, 1)
}

// NewLogOf creates a log of several partitions.
func NewLogOf(t *testing.T, partitions int) *Log {
	t.Helper()
	server := natstest.Start(t)
	b, err := backend.Create(waittest.Context(t), backend.Config{NATSURL: server.URL()}, "test", eventlog.Settings{Partitions: partitions}, daemon.NewEnv(nil).Log)
	must.NoError(t, err)
	t.Cleanup(b.Close)
	return &Log{server, b, t}
}

// Remove deletes entries without announcing that: damage.
func (l *Log) Remove(sequences ...uint64) {
	l.t.Helper()
	for _, sequence := range sequences {
		must.NoError(l.t, l.Backend.Log.Delete(waittest.Context(l.t), 0, sequence))
	}
}

// Announce announces that entries of session s are deleted, of a stream or of the life.
func (l *Log) Announce(stream string, reason eventlog.Reason, sequences ...uint64) {
	l.t.Helper()
	l.AnnounceOf("s", stream, reason, sequences...)
}

// AnnounceOf announces that entries of a session are deleted.
func (l *Log) AnnounceOf(session, stream string, reason eventlog.Reason, sequences ...uint64) {
	l.t.Helper()
	_, err := eventlogtest.Announce(waittest.Context(l.t), l.Backend.Log, eventlog.Trim{
		Session: session, Life: l.Life(session), Stream: stream, UpTo: sequences[len(sequences)-1], Reason: reason, Listed: sequences,
	})
	must.NoError(l.t, err)
}

// Trim announces that entries are deleted, and deletes them.
func (l *Log) Trim(stream string, reason eventlog.Reason, sequences ...uint64) {
	l.t.Helper()
	l.Announce(stream, reason, sequences...)
	l.Remove(sequences...)
}

// Purge moves the floor.
func (l *Log) Purge(before uint64) {
	l.t.Helper()
	must.NoError(l.t, l.Backend.Log.Purge(waittest.Context(l.t), 0, before))
}

// Rewrite writes the birth of a stream of session s again.
func (l *Log) Rewrite(stream string, c eventlog.BirthCopy) {
	l.t.Helper()
	must.Value(l.Backend.Log.Rewrite(waittest.Context(l.t), event.Subject{Session: "s", Life: l.Life("s"), Stream: stream, Kind: event.Birth}, 0, &c))(l.t)
}

// Restart restarts the server and begins a generation, which is not checked.
func (l *Log) Restart() {
	l.t.Helper()
	l.Server.Stop()
	l.Server.Start()
	l.Server.AwaitConn(l.Backend.Log.Conn())
	l.Begin()
}

// Begin begins a generation for the server that is connected, as the janitor does.
func (l *Log) Begin() {
	l.t.Helper()
	waittest.NoError(l.t, func() error {
		_, err := l.Backend.Log.BeginGeneration(waittest.Context(l.t), 0)
		if err == nil {
			_, err = l.Backend.Log.Look(waittest.Context(l.t), 0) // after an error that came when it was stored
		}
		return err
	})
}

// Check notes that the partition was read, and the sequence up to which entries are missing.
func (l *Log) Check(damaged uint64) {
	l.t.Helper()
	waittest.NoError(l.t, func() error {
		state, err := l.Backend.Log.Look(waittest.Context(l.t), 0)
		if err == nil {
			err = l.Backend.Log.SetChecked(waittest.Context(l.t), 0, state, damaged)
		}
		return err
	}, eventlog.ErrUnavailable)
}

// Publish publishes n events to a stream of session s, and returns the last sequence.
func (l *Log) Publish(stream string, n int) uint64 {
	l.t.Helper()
	return l.PublishTo("s", stream, n)
}

// PublishTo publishes n events to a stream of a session, and returns the last sequence.
func (l *Log) PublishTo(session, stream string, n int) uint64 {
	l.t.Helper()
	var last uint64
	for range n {
		ack, err := l.Backend.Log.Publish(l.t.Context(), eventlog.Event{Session: session, Life: l.Life(session), Stream: stream, Data: []byte(`{"jsonrpc":"2.0","method":"m"}`)})
		must.NoError(l.t, err)
		last = ack.Sequence
	}
	return last
}

// Life returns the life of a session that was opened; empty without an opening.
func (l *Log) Life(name string) string {
	rec, _ := l.Backend.Sessions.Session(name)
	return rec.Life
}

// RewriteOpening stores the opening of a session again, as the janitor does before the log's floor
// passes it, and returns the sequence of the previous one, which stays.
func (l *Log) RewriteOpening(name string) (before uint64) {
	l.t.Helper()
	log := l.Backend.Log
	o, err := log.Opening(waittest.Context(l.t), name)
	if err == nil {
		_, err = log.Rewrite(waittest.Context(l.t), event.Subject{Partition: log.Partition(name), Session: name, Kind: event.Open}, o.Sequence, nil)
	}
	must.NoError(l.t, err)
	return o.Sequence
}

// RewriteEnd writes the end of a session again.
func (l *Log) RewriteEnd(name string) {
	l.t.Helper()
	log := l.Backend.Log
	s := event.Subject{Partition: log.Partition(name), Session: name, Life: l.Life(name), Kind: event.End}
	e, err := log.Newest(waittest.Context(l.t), s)
	if err == nil {
		_, err = log.Rewrite(waittest.Context(l.t), s, e.Sequence, nil)
	}
	must.NoError(l.t, err)
}

// End ends a session.
func (l *Log) End(name string) {
	l.t.Helper()
	must.NoError(l.t, l.Backend.Sessions.End(waittest.Context(l.t), name, "", false))
}

// Free makes a session's name free, as the janitor does.
func (l *Log) Free(name string) {
	l.t.Helper()
	rec, err := l.Backend.Sessions.Get(waittest.Context(l.t), name)
	if err == nil {
		err = eventlogtest.Forget(waittest.Context(l.t), l.Backend.Log, name)
	}
	if err == nil {
		err = l.Backend.Sessions.Remove(waittest.Context(l.t), rec)
	}
	must.NoError(l.t, err)
}

// Reuse makes a session's name free, and opens a session of the name.
func (l *Log) Reuse(name, owner string) {
	l.t.Helper()
	l.Free(name)
	l.Create(name, owner)
}

// HoldTails stops the entries to the current tails of the first partition, until release is called.
func (l *Log) HoldTails() (release func()) {
	l.t.Helper()
	js := natstest.JetStream(l.t, l.Backend.Conn)
	stream := must.Value(js.Stream(waittest.Context(l.t), "MCP_0"))(l.t)
	var names []string
	for name := range stream.ConsumerNames(waittest.Context(l.t)).Name() {
		names = append(names, name)
		must.Value(stream.PauseConsumer(waittest.Context(l.t), name, time.Now().Add(time.Hour)))(l.t)
	}
	return func() {
		for _, name := range names { // a tail begins again at once
			if err := stream.DeleteConsumer(waittest.Context(l.t), name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
				l.t.Error(err)
			}
		}
	}
}
