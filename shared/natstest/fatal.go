package natstest

import "fmt"

// fatalLog gets the first reason why a NATS server cannot go on.
type fatalLog chan string

// Fatalf keeps the reason.
func (f fatalLog) Fatalf(format string, args ...any) {
	select {
	case f <- fmt.Sprintf(format, args...):
	default:
	}
}

// Errorf, and those below, drop what they are given.
func (fatalLog) Errorf(string, ...any) {}

// Warnf drops a warning.
func (fatalLog) Warnf(string, ...any) {}

// Noticef drops a notice.
func (fatalLog) Noticef(string, ...any) {}

// Debugf drops a debug line.
func (fatalLog) Debugf(string, ...any) {}

// Tracef drops a trace line.
func (fatalLog) Tracef(string, ...any) {}
