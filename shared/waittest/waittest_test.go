package waittest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// failing is a test whose failure is read by another one.
type failing struct {
	testing.TB

	failure string
}

type stopped struct{}

func (*failing) Helper() {}

func (f *failing) Fatal(args ...any) { f.failure = fmt.Sprint(args...); panic(stopped{}) }

func (f *failing) Fatalf(format string, args ...any) { f.Fatal(fmt.Sprintf(format, args...)) }

// failure returns the failure of do, and the time until it.
func failure(t *testing.T, do func(testing.TB)) (text string, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f, began := &failing{TB: t}, time.Now()
		func() {
			defer func() {
				if r := recover(); r != nil && r != (stopped{}) {
					panic(r)
				}
			}()
			do(f)
		}()
		text, took = f.failure, time.Since(began)
	})
	return text, took
}

var (
	errPassing = errors.New("passing")
	errOther   = errors.New("other")
)

func TestWait_ConditionComesTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soon := time.Now().Add(waittest.Timeout / 2)
		waittest.Until(t, "soon", func() bool { return time.Now().After(soon) })
		soon = time.Now().Add(waittest.Timeout / 2)
		if got := waittest.Value(t, "soon", time.Now, func(now time.Time) bool { return now.After(soon) }); !got.After(soon) {
			t.Error(got)
		}
		errs := []error{errPassing, errPassing, nil}
		waittest.NoError(t, func() (err error) { err, errs = errs[0], errs[1:]; return err }, errPassing)
		ch := make(chan int)
		time.AfterFunc(waittest.Timeout/2, func() { ch <- 7 })
		if got := waittest.Receive(t, "seven", ch); got != 7 {
			t.Error(got)
		}
		must.NoError(t, waittest.Context(t).Err())
	})
}

func TestWait_FailureSaysWhatWasSeen(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(testing.TB)
		want string
		now  bool // without waiting
	}{
		"Until": {func(t testing.TB) { waittest.Until(t, "what", func() bool { return false }) }, "what", false},
		"Value": {func(t testing.TB) {
			waittest.Value(t, "what", func() int { return 41 }, func(int) bool { return false })
		}, "41", false},
		"NoError":           {func(t testing.TB) { waittest.NoError(t, func() error { return errOther }) }, "other", false},
		"NoErrorPassing":    {func(t testing.TB) { waittest.NoError(t, func() error { return errPassing }, errPassing) }, "passing", false},
		"NoErrorNotPassing": {func(t testing.TB) { waittest.NoError(t, func() error { return errOther }, errPassing) }, "other", true},
		"Receive":           {func(t testing.TB) { waittest.Receive(t, "what", make(chan int)) }, "what", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, took := failure(t, c.do)
			if !strings.Contains(got, c.want) {
				t.Errorf("%q", got)
			}
			if c.now != (took == 0) || took > waittest.Timeout+time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}
