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

// count counts and logs what became of a message.
func (s *Service) count(ctx context.Context, m message, ack stored, err error) {
	s.metrics.publishedAs(ack, err)
	s.log.published(ctx, m, ack, err)
}
