package web

import "errors"

// ErrStopTimeout is returned by [Serve] when requests were still being
// answered when the grace was over.
var ErrStopTimeout = errors.New("requests did not end in time")
