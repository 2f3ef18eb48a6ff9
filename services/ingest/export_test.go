package ingest

import (
	"context"
	"time"
)

// LimitBy replaces the function that bounds the time of requests. It is called before Run.
func (s *Service) LimitBy(limit func(context.Context, time.Duration) (context.Context, context.CancelFunc)) {
	s.limit = limit
}
