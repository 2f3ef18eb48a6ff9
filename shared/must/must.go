// Package must ends a test at an error that the test is not about.
package must

// TB is the test that fails: one of package testing, or of rapid.
type TB interface {
	Helper()
	Fatal(args ...any)
}

// NoError ends the test unless err is nil.
func NoError(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Value returns the result of a call, and ends the test if the call has failed: v := must.Value(call())(t).
func Value[V any](v V, err error) func(TB) V {
	return func(t TB) V {
		t.Helper()
		NoError(t, err)
		return v
	}
}
