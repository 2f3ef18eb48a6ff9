package host

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A bridge that is replaced learns so at once; one that does not know tries until it does, or its time is over.
func TestHost_HasName(t *testing.T) {
	for name, tt := range map[string]struct {
		looks []error // the last one stays
		has   bool
		took  time.Duration
	}{
		"has it":          {[]error{nil}, true, 0},
		"is replaced":     {[]error{ErrReplaced}, false, 0},
		"learns it later": {[]error{errors.New("no NATS"), nil}, true, 50 * time.Millisecond},
		"does not know":   {[]error{errors.New("no NATS")}, false, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, begun := &Host{Life: t.Context()}, time.Now()
				h.Confirm = func(context.Context) error {
					err := tt.looks[0]
					if len(tt.looks) > 1 {
						tt.looks = tt.looks[1:]
					}
					return err
				}
				if has := h.HasName(); has != tt.has || time.Since(begun) != tt.took {
					t.Errorf("it has its name %t, after %s", has, time.Since(begun))
				}
			})
		})
	}
}
