package natstest

import "fmt"

// fatalLog receives the first fatal error of a NATS server.
type fatalLog chan string

// Fatalf keeps the reason.
func (f fatalLog) Fatalf(format string, args ...any) {
	select {
	case f <- fmt.Sprintf(format, args...):
	default:
	}
}

// Errorf drops an error.
func (fatalLog) Errorf(string, ...any) {}

// Warnf drops a warning.
func (fatalLog) Warnf(string, ...any) {}

// Noticef drops a notice.
func (fatalLog) Noticef(string, ...any) {}

// Debugf drops a debug line.
func (fatalLog) Debugf(string, ...any) {}

// Tracef drops a trace line.
func (fatalLog) Tracef(string, ...any) {}
