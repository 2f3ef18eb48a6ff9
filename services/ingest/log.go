package ingest

import (
	"context"
	"log/slog"
)

// publishLog writes a debug line about each message.
type publishLog struct {
	*slog.Logger
	bodies bool // with the message
}

// published tells what became of a message that was begun, or why it was not.
func (l publishLog) published(ctx context.Context, m message, ack stored, err error) {
	if !l.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := []any{"session", m.session, "stream", m.stream, "bytes", len(m.data)}
	if l.bodies {
		attrs = append(attrs, "body", string(m.data))
	}
	if err != nil {
		l.DebugContext(ctx, "a message is not stored", append(attrs, "code", string(problem(err).Code))...)
		return
	}
	l.DebugContext(ctx, "a message is stored", append(attrs, "id", ack.ID, "duplicate", ack.Duplicate)...)
}

// refused counts a message that is not begun.
func (s *Service) refused(ctx context.Context, m message, err error) {
	s.metrics.publishedAs(stored{}, err)
	s.log.published(ctx, m, stored{}, err)
}
