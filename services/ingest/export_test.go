package ingest

import (
	"context"
	"time"
)

// LimitBy replaces what bounds the time of requests. It is called before Run.
func (s *Service) LimitBy(limit func(context.Context, time.Duration) (context.Context, context.CancelFunc)) {
	s.limit = limit
}
