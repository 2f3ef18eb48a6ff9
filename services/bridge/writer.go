package bridge

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
	"rejoin/shared/tracing"
)

// writer stores the events of one stream, one after the other: the next is begun when
// the one before is acknowledged. What the log does not answer is tried again under the
// same idempotency key, so nothing is stored twice, left out, or stored in another
// order. While the log is unavailable the caller waits, and so does the upstream.
//
// The stream of a call is the bridge's alone, and needs no birth. To the standalone stream
// others may write too.
//
// The next event of a stream begins when the one before is acknowledged. The idempotency key of
// an event with an ID of the upstream also hashes its data, so an ID that is used twice loses
// nothing.
type writer struct {
	host                  *host
	session, life, stream string
	trace                 tracing.Context // of the call
	nonce                 string          // of the keys of what has no ID of its own
	index                 uint64
	last                  uint64          // the sequence that the next event comes after
	over                  <-chan struct{} // closed when the session ends: nothing needs to be stored any more
}

func newWriter(h *host, session, life, stream string) *writer {
	return &writer{host: h, session: session, life: life, stream: stream, nonce: rand.Text()}
}

// errClosed is returned when the log takes no more of a stream.
var errClosed = errors.New("the stream is closed")

// item is an event that is to be stored.
type item struct {
	data  []byte
	id    string // of the upstream's event, or empty
	index int    // of the message in the upstream's event
	final bool
}

// put stores an event, and returns its sequence, as long as ctx does not end between two
// attempts. Errors are [upstream.ErrTooLarge], [errClosed], and ctx's cause.
func (w *writer) put(ctx context.Context, it item) (uint64, error) {
	e := eventlog.Event{
		Session: w.session, Life: w.life, Stream: w.stream, Sole: w.stream != rpc.Standalone,
		Data: it.data, Final: it.final, Trace: w.trace,
	}
	if it.id != "" {
		// A bridge that resumes the upstream's stream gets the same event again. An
		// upstream that uses an ID twice loses nothing.
		e.Key, e.KeyIndex = "id:"+it.id+"\n"+string(it.data), uint64(it.index) //nolint:gosec // an index
	} else {
		e.Key, e.KeyIndex = "at:"+w.nonce, w.index
		w.index++
	}
	m, since := w.host.metrics, time.Now()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if time.Since(since) > w.host.times.doubt {
			// The log may have forgotten the key of an attempt that it did not answer.
			if sequence, err := w.find(ctx, e); err == nil && sequence > 0 {
				w.last = sequence
				m.messages.WithLabelValues(resultDuplicate).Inc()
				return sequence, nil
			}
		}
		begun := time.Now()
		ack, err := w.try(ctx, e)
		m.publishSeconds.Observe(time.Since(begun).Seconds())
		switch {
		case err == nil && ack.Duplicate:
			w.last = max(w.last, ack.Sequence)
			w.stored(e, ack)
			m.messages.WithLabelValues(resultDuplicate).Inc()
			return ack.Sequence, nil
		case err == nil:
			w.last = ack.Sequence
			w.stored(e, ack)
			m.messages.WithLabelValues(resultStored).Inc()
			return ack.Sequence, nil
		case errors.Is(err, eventlog.ErrTooLarge):
			return 0, upstream.ErrTooLarge
		case errors.Is(err, eventlog.ErrClosed):
			return 0, errClosed
		}
		m.retries.Inc()
		w.host.log.Debug("a message is not stored yet", "session", w.session, "stream", w.stream, "error", err)
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-w.over:
			return 0, errClosed
		case <-time.After(pause):
		}
	}
}

// stored writes a debug line.
func (w *writer) stored(e eventlog.Event, ack eventlog.Ack) {
	s := w.host
	if !s.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	ctx := w.trace.Within(context.Background())
	attrs := []any{"session", w.session, "stream", w.stream, "sequence", ack.Sequence, "bytes", len(e.Data), "duplicate", ack.Duplicate}
	if s.bodies {
		attrs = append(attrs, "body", string(e.Data))
	}
	s.log.DebugContext(ctx, "a message is stored", attrs...)
}

// find returns the sequence of an event that an attempt may have stored; 0 for none.
func (w *writer) find(ctx context.Context, e eventlog.Event) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.host.cfg.AckTimeout)
	defer cancel()
	l := w.host.backend.Log
	state, err := l.Look(ctx, l.Partition(w.session))
	if err != nil {
		return 0, err
	}
	page, err := l.Read(ctx, eventlog.Query{Session: w.session, Life: w.life, Stream: w.stream, After: w.last, UpTo: state.Last, MaxEvents: 500, MaxBytes: reloadBytes})
	if err != nil {
		return 0, err
	}
	for _, stored := range page.Entries {
		if stored.Final == e.Final && bytes.Equal(stored.Data, e.Data) {
			return stored.Sequence, nil
		}
	}
	return 0, nil
}

// try is an attempt. It keeps its own deadline when ctx ends: what was sent may be
// stored anyway.
func (w *writer) try(ctx context.Context, e eventlog.Event) (eventlog.Ack, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.host.cfg.AckTimeout)
	defer cancel()
	return w.host.backend.Log.Publish(ctx, e)
}

// reloadBytes bounds a page of what is read.
const reloadBytes = 4 << 20
