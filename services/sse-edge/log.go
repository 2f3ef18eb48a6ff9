package edge

import (
	"context"
	"log/slog"

	"rejoin/services/sse-edge/cursor"

	"rejoin/services/sse-edge/window"
)

// comesBack tells why a subscriber is told to come back.
func (s *Service) comesBack(ctx context.Context, at window.Place, why error) {
	s.logger.WarnContext(ctx, "a subscriber is told to come back", "session", at.Session, "stream", at.Stream, "error", why)
}

// logGap writes a debug line about a gap that a client was told of.
func (s *Service) logGap(r *cursor.Reader, g cursor.Gap, by asked) {
	s.logger.DebugContext(by.ctx, "a subscriber is told of a gap", "session", r.Place.Session, "stream", g.Stream,
		"reason", string(g.Reason), "certain", g.Certain, "requested", g.Requested)
}

// connected writes a debug line about a stream that begins; cursor is where.
func (st *stream) connected(from beginning) {
	s, r := st.service, st.reader
	if !s.logger.Enabled(st.asked.ctx, slog.LevelDebug) {
		return
	}
	message := "a subscriber connects"
	if from.resumes {
		message = "a subscriber resumes"
	}
	s.logger.DebugContext(st.asked.ctx, message, "session", r.Place.Session, "stream", r.Place.Stream, "cursor", from.position) //nolint:sloglint // one of two constants
}

// disconnected writes a debug line about a stream that has ended.
func (st *stream) disconnected() {
	s, r := st.service, st.reader
	if s.logger.Enabled(st.asked.ctx, slog.LevelDebug) {
		s.logger.DebugContext(st.asked.ctx, "a subscriber is gone", "session", r.Place.Session, "stream", r.Place.Stream, "cursor", r.Cursor, "reason", st.reason)
	}
}
