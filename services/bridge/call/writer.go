package call

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/retry"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
	"rejoin/shared/tracing"
)

// Writer stores the events of one stream, one after the other: each begins when the
// previous one is acknowledged. An event without an acknowledgement is tried again under the
// same idempotency key, so no event is stored twice, left out, or stored in another
// order. While the log is unavailable the caller waits, and so does the upstream.
//
// The stream of a call is the bridge's alone, and needs no birth. Others may also write to the
// standalone stream.
type Writer struct {
	host                  *host.Host
	session, Life, stream string
	Trace                 tracing.Context // of the call
	nonce                 string          // of the keys of events without an ID
	index                 uint64
	Last                  uint64          // the sequence that the next event comes after
	unknown               bool            // the last event has an unknown outcome
	over                  <-chan struct{} // closed when the session ends: no event needs to be stored any more
}

// NewWriter returns the writer of a stream.
func NewWriter(h *host.Host, session, life, stream string) *Writer {
	return &Writer{host: h, session: session, Life: life, stream: stream, nonce: rand.Text()}
}

// ErrClosed is returned when the log takes no more events of a stream.
var ErrClosed = errors.New("the stream is closed")

// Item is an event that is to be stored.
type Item struct {
	Data  []byte
	ID    string // of the upstream's event, or empty
	Index int    // of the message in the upstream's event
	After bool   // the event has no ID: ID is that of the last one, and Index counts the messages since
	Final bool
}

// key returns the idempotency key of an event with an ID: a bridge that resumes the upstream's stream gets the same
// event again. An upstream that uses an ID twice loses nothing.
func (it Item) key() (key string, index uint64) {
	prefix := "id:"
	if it.After {
		prefix = "after:"
	}
	return prefix + it.ID + "\n" + string(it.Data), uint64(it.Index) //nolint:gosec // an index
}

// Put stores an event, and returns its sequence, as long as ctx does not end between two
// attempts. Errors are [upstream.ErrTooLarge], [ErrClosed], and ctx's cause.
func (w *Writer) Put(ctx context.Context, it Item) (uint64, error) {
	e := eventlog.Event{
		Session: w.session, Life: w.Life, Stream: w.stream, Sole: w.stream != rpc.Standalone,
		Data: it.Data, Final: it.Final, Trace: w.Trace,
	}
	if it.ID != "" {
		e.Key, e.KeyIndex = it.key()
	} else {
		e.Key, e.KeyIndex = "at:"+w.nonce, w.index
		w.index++
	}
	m, since := w.host.Metrics, w.host.Times.Now()
	outage := w.host.Pauses.Outage() // begins with a failure: a process that writes responses is not read meanwhile
	defer outage.Set(false)
	for pause := retry.FirstPause; ; pause = min(2*pause, retry.LastPause) {
		var ack eventlog.Ack
		err := w.host.Confirm(ctx)
		if err == nil && since.Until(w.host.Times.Now()) > w.host.Times.Doubt {
			// The log may have forgotten the key of an attempt that it did not answer. Unless a read shows that
			// the log does not have the event, another attempt could store it twice.
			ack.Sequence, err = w.find(ctx, e)
			ack.Duplicate = ack.Sequence > 0
		}
		if err == nil && !ack.Duplicate {
			begun := time.Now()
			ack, err = w.try(ctx, e)
			m.PublishSeconds.Observe(time.Since(begun).Seconds())
		}
		switch {
		case err == nil:
			w.Last = max(w.Last, ack.Sequence)
			w.stored(e, ack)
			return ack.Sequence, nil
		case errors.Is(err, eventlog.ErrTooLarge):
			return 0, upstream.ErrTooLarge
		case errors.Is(err, eventlog.ErrClosed):
			return 0, ErrClosed
		}
		if !errors.Is(err, eventlog.ErrFull) { // a partition may be full for hours
			outage.Set(true)
		}
		m.Retries.Inc()
		w.host.Logger.Debug("a message is not stored yet", "session", w.session, "stream", w.stream, "error", err)
		select {
		case <-ctx.Done():
			w.unknown = true
			return 0, context.Cause(ctx)
		case <-w.over:
			return 0, ErrClosed
		case <-time.After(pause):
		}
	}
}

// stored counts an event, and writes a debug line.
func (w *Writer) stored(e eventlog.Event, ack eventlog.Ack) {
	s, result := w.host, host.ResultStored
	if ack.Duplicate {
		result = host.ResultDuplicate
	}
	s.Metrics.Messages.WithLabelValues(result).Inc()
	if !s.Logger.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	ctx := w.Trace.Within(context.Background())
	attrs := []any{"session", w.session, "stream", w.stream, "sequence", ack.Sequence, "bytes", len(e.Data), "duplicate", ack.Duplicate}
	if s.Bodies {
		attrs = append(attrs, "body", string(e.Data))
	}
	s.Logger.DebugContext(ctx, "a message is stored", attrs...)
}

// find returns the sequence of an event that an attempt may have stored; 0 for none.
func (w *Writer) find(ctx context.Context, e eventlog.Event) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.host.Config.AckTimeout)
	defer cancel()
	l := w.host.Backend.Log
	state, err := l.Look(ctx, l.Partition(w.session))
	if err != nil {
		return 0, err
	}
	for w.Last < state.Last {
		page, err := l.Read(ctx, eventlog.Query{Session: w.session, Life: w.Life, Stream: w.stream, After: w.Last, UpTo: state.Last, MaxEvents: 500, MaxBytes: reloadBytes})
		if err != nil {
			return 0, err
		}
		for _, stored := range page.Entries {
			if stored.Final == e.Final && bytes.Equal(stored.Data, e.Data) {
				return stored.Sequence, nil
			}
		}
		w.Last = page.Through // others have stored these events
	}
	return 0, nil
}

// try makes one attempt. It keeps its own deadline when ctx ends: the event that it sent may be
// stored anyway.
func (w *Writer) try(ctx context.Context, e eventlog.Event) (eventlog.Ack, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.host.Config.AckTimeout)
	defer cancel()
	return w.host.Backend.Log.Publish(ctx, e)
}

// reloadBytes bounds a page of a read.
const reloadBytes = 4 << 20
