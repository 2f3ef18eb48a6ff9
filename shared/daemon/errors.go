package daemon

import "errors"

// ErrStopTimeout is returned when an actor was told to stop and
// had not returned when the stop time-out was over.
var ErrStopTimeout = errors.New("did not stop in time")
