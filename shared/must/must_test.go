package must_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"rejoin/shared/must"
)

// failing notes the failures of a test, and continues.
type failing struct{ failures []string }

func (*failing) Helper() {}

func (f *failing) Fatal(args ...any) { f.failures = append(f.failures, fmt.Sprint(args...)) }

func TestMust_ErrorEndsTheTest(t *testing.T) {
	f := &failing{}
	must.NoError(f, nil)
	must.NoError(f, errors.New("a"))
	if v := must.Value(7, nil)(f); v != 7 {
		t.Errorf("the value is %d", v)
	}
	must.Value(0, errors.New("b"))(f)
	if !slices.Equal(f.failures, []string{"a", "b"}) {
		t.Errorf("it fails with %q", f.failures)
	}
}
