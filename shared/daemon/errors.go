package daemon

import "errors"

// ErrStopTimeout is returned when the context of an actor was canceled and
// it had not returned when the stop time-out was over.
var ErrStopTimeout = errors.New("did not stop in time")
