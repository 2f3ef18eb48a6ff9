package daemon

import (
	"io"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/quota"
	"rejoin/shared/tracing"
)

// Env has the resources that a program gives to the constructor of each of its services.
// All of it is safe for concurrent use, Stdout excepted.
type Env struct {
	// Log is the program's logger.
	Log *slog.Logger

	// LogBodies says that debug lines about publishing show messages.
	LogBodies bool

	// Traces takes spans. Nil: no spans are made.
	Traces *tracing.Traces

	// Metrics takes the service's collectors; the admin port serves them.
	Metrics *prometheus.Registry

	// Listen opens the services' listeners, host:port, in place of the system's sockets. flag is
	// the command-line flag that set the address. Nil: sockets.
	Listen func(addr, flag string) (net.Listener, error)

	// Memory is how many bytes clients may make the program hold. Nil: any number.
	Memory *quota.Pool

	// Files is how many files clients may make the program open. Nil: any number.
	Files *quota.Pool

	// FreeMemory returns freed memory to the operating system. It collects the garbage of
	// the whole program. NewEnv's does nothing.
	FreeMemory func()

	// Health takes the service's readiness checks.
	Health *Health

	// Command is the selected subcommand in Kong's notation, such as
	// "log set"; empty in a program without subcommands.
	Command string

	// Stdout is where a command that is not a service prints its result.
	Stdout io.Writer
}

// NewEnv returns an Env with an empty registry of metrics of its own, no
// readiness checks, and a Stdout that discards. A nil log discards everything.
func NewEnv(log *slog.Logger) Env {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return Env{
		Log:        log,
		Metrics:    prometheus.NewRegistry(),
		FreeMemory: func() {},
		Health:     new(Health),
		Stdout:     io.Discard,
	}
}
