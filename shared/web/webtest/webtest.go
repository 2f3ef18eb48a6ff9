// Package webtest helps to test services that use package web.
package webtest

import "go.uber.org/goleak"

// IgnoreFasthttp returns options that make goleak overlook the goroutines
// that fasthttp leaks by design: its clock, which runs for the life
// of the process, and the cleaner of a stopped server's worker pool, which
// sleeps up to 10 s before it notices (docs/upstream/0024).
func IgnoreFasthttp() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	}
}
