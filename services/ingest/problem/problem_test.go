package problem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"rejoin/services/ingest/streams"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

func TestOf_EachError(t *testing.T) {
	secret := errors.New("10.0.0.7: secret")
	for name, tt := range map[string]struct {
		err    error
		status int
		code   web.Code
	}{
		"name":                 {event.ErrInvalidName, 400, web.CodeInvalidName},
		"json":                 {event.ErrInvalidJSON, 400, web.CodeInvalidJSON},
		"message":              {event.ErrInvalidMessage, 400, web.CodeInvalidMessage},
		"type":                 {event.ErrInvalidType, 400, web.CodeInvalidHeader},
		"reserved type":        {event.ErrReservedType, 400, web.CodeReservedType},
		"stream closed":        {fmt.Errorf("%w: %w", ErrStreamClosed, session.ErrClosed), 409, web.CodeStreamClosed},
		"opened again":         {fmt.Errorf("%w: %w", ErrFenced, ErrOpenedAgain), 503, web.CodeUnavailable},
		"stream closed, fence": {fmt.Errorf("%w: %w", ErrFenced, session.ErrClosed), 409, web.CodeSessionClosed},
		"opening unknown":      {fmt.Errorf("%w: %w", session.ErrUnavailable, eventlog.ErrUnknown), 503, web.CodeUnavailable},
		"session closed":       {session.ErrClosed, 409, web.CodeSessionClosed},
		"too many streams":     {streams.ErrTooMany, 409, web.CodeTooManyStreams},
		"rate":                 {&RateError{Of: "session", What: "messages", Wait: time.Second}, 429, web.CodeRateLimited},
		"too many sessions":    {&session.FullError{Reason: session.FullShare}, 429, web.CodeTooManySessions},
		"session exists":       {session.ErrExists, 409, web.CodeSessionExists},
		"session not there":    {session.ErrNotFound, 404, web.CodeNotFound},
		"registry away":        {session.ErrUnavailable, 503, web.CodeUnavailable},
		"too large":            {eventlog.ErrTooLarge, 413, web.CodeBodyTooLarge},
		"full":                 {eventlog.ErrFull, 503, web.CodeStorageFull},
		"unknown":              {eventlog.ErrUnknown, 503, web.CodePublishUnknown},
		"log away":             {eventlog.ErrUnavailable, 503, web.CodeUnavailable},
		"busy":                 {ErrBusy, 503, web.CodeUnavailable},
		"stopping":             {ErrStopping, 503, web.CodeUnavailable},
		"close: unknown":       {fmt.Errorf("%w: %w", ErrCloseFailed, eventlog.ErrUnknown), 503, web.CodeUnavailable},
		"close: full":          {fmt.Errorf("%w: %w", ErrCloseFailed, eventlog.ErrFull), 503, web.CodeUnavailable},
		"deadline":             {context.DeadlineExceeded, 503, web.CodeUnavailable},
		"cancelled":            {context.Canceled, 503, web.CodeUnavailable},
		"mismatch":             {eventlog.ErrMismatch, 500, web.CodeInternal},
		"anything else":        {io.EOF, 500, web.CodeInternal},
		"a problem":            {web.New(web.CodeInvalidParameter, "x"), 400, web.CodeInvalidParameter},
		"a problem, wrapped":   {fmt.Errorf("x: %w", web.New(web.CodeInvalidHeader, "x")), 400, web.CodeInvalidHeader},
		"unavailable, and why": {errors.Join(eventlog.ErrUnavailable, context.DeadlineExceeded), 503, web.CodeUnavailable},
	} {
		err := fmt.Errorf("%w", tt.err)
		if tt.status >= 404 {
			err = fmt.Errorf("%w: %w", tt.err, secret)
		}
		p := Of(err)
		if p.Status != tt.status || p.Code != tt.code {
			t.Errorf("%s: %d %s, want %d %s", name, p.Status, p.Code, tt.status, tt.code)
		}
		if strings.Contains(p.Detail, "secret") {
			t.Errorf("%s tells %q", name, p.Detail)
		}
		if (p.Status == 503 || p.Status == 429) != (web.Codes[p.Code].RetryAfter > 0) {
			t.Errorf("%s: status %d, Retry-After %s", name, p.Status, web.Codes[p.Code].RetryAfter)
		}
	}
	if p := Of(eventlog.ErrUnknown); !strings.Contains(p.Detail, "may have been stored") || !strings.Contains(p.Detail, "Idempotency-Key") {
		t.Errorf("unknown: %q", p.Detail)
	}
}
