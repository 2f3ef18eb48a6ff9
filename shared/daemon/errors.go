package daemon

import "errors"

// ErrStopTimeout is returned when an actor of a [Group] was told to stop and
// had not returned when the group's stop time-out was over.
var ErrStopTimeout = errors.New("did not stop in time")
