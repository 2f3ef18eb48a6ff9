package daemon

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/flagtype"
	"rejoin/shared/metric"
	"rejoin/shared/quota"
	"rejoin/shared/tracing"
)

// DefaultStopTimeout is the StopTimeout of a zero [Config].
const DefaultStopTimeout = 30 * time.Second

// leastMemory is the least memory budget: with a few bytes all requests would be refused.
const leastMemory = 1 << 20

// Config holds the flags that all programs share. Embed it in a program's
// own flag struct. Each flag can be given in the environment as well, as
// REJOIN_ and its name: --log-level is REJOIN_LOG_LEVEL.
type Config struct {
	// File is a YAML file that sets flags which are given neither on the command line nor in the
	// environment. Default: none.
	File configFlag `name:"config" type:"path" help:"YAML file that sets flags, such as log-level: debug; the command line and the environment take precedence." placeholder:"FILE"`

	// AdminAddr is the address of the admin port, host:port. Empty: no admin
	// port. Default: the Kong variable admin_addr, 127.0.0.1:9080 unless the
	// program sets another with kong.Vars.
	AdminAddr string `default:"${admin_addr}" help:"Address of the admin port: /livez, /readyz, /metrics. Empty disables it." placeholder:"HOST:PORT"`

	// AdminHosts are the names that a request's Host header to the admin port may have,
	// without port, besides addresses, names without a dot and the machine's own. Default:
	// none.
	AdminHosts []string `help:"Host names with a dot, in addition to the machine's own, that clients may use for the admin port." placeholder:"HOST"`

	// LogLevel is the lowest level that is logged: debug, info, warn or
	// error. Default: info.
	LogLevel string `default:"info" enum:"debug,info,warn,error" help:"Lowest level to log: debug, info, warn or error."`

	// LogFormat is text, json, or auto: text on a terminal, JSON otherwise.
	// Default: auto.
	LogFormat string `default:"auto" enum:"auto,text,json" help:"Log format: text, json, or auto: text on a terminal, JSON otherwise."`

	// LogBodies shows messages in the debug lines about publishing. Default: false, no
	// line of the log has any part of a message.
	LogBodies bool `help:"Include message bodies in debug log lines about publishing."`

	// MemoryBudget is how many bytes clients may make the program hold, in requests, answers
	// and reads of the log; -1 for any number. Default, and the meaning of zero:
	// [quota.Memory].
	MemoryBudget flagtype.Bytes `default:"0" help:"Maximum memory for data held on behalf of clients; 0 for a quarter of GOMEMLIMIT or of the container's memory (64 MiB without either); -1 for unlimited. All sizes are in bytes or have a unit, such as 64MB, 1GB or 256KiB." placeholder:"BYTES"`

	// StopTimeout bounds the time from the first signal to the end of the
	// program. Default, and the meaning of zero: 30 s.
	StopTimeout time.Duration `default:"30s" help:"Maximum duration of an orderly stop."`

	// Pprof serves /debug/pprof on the admin port. Default: false.
	Pprof bool `help:"Serve /debug/pprof on the admin port."`

	// Healthcheck asks the program of the same configuration that runs already whether it
	// is ready, and exits with 0 or 1: for containers without any other HTTP client.
	Healthcheck bool `env:"-" hidden:"" help:"Check on the admin port whether the running program is ready; exit with 0 or 1."`

	// Version is the --version flag; it has no environment variable.
	Version kong.VersionFlag `env:"-" help:"Print the version and exit."`
}

// Validate returns an error that names the first flag whose value makes no sense.
func (c *Config) Validate() error {
	if c.StopTimeout < 0 {
		return fmt.Errorf("--stop-timeout must not be negative, as %s is", c.StopTimeout)
	}
	if c.MemoryBudget < -1 {
		return fmt.Errorf("--memory-budget must be -1 or more, not %d", c.MemoryBudget)
	}
	if c.MemoryBudget > 0 && c.MemoryBudget < leastMemory {
		return fmt.Errorf("--memory-budget must be at least 1MiB, or 0 or -1, not %d", c.MemoryBudget)
	}
	return cmp.Or(CheckAddr(c.AdminAddr, "--admin-addr"), CheckHosts(c.AdminHosts, "--admin-hosts"))
}

// memory returns the pool that MemoryBudget describes, and registers its metrics.
func (c *Config) memory(metrics prometheus.Registerer) *quota.Pool {
	limit := int64(c.MemoryBudget)
	if limit == 0 {
		limit = quota.Memory()
	}
	pool := quota.NewPool(limit)
	metric.GaugeFunc(metrics, "rejoin_memory_budget_bytes", "Bytes that clients may make the program hold; 0 for any number.",
		func() float64 { return float64(pool.Capacity()) })
	metric.GaugeFunc(metrics, "rejoin_memory_held_bytes", "Bytes that clients make the program hold.",
		func() float64 { return float64(pool.Used()) })
	return pool
}

func (c *Config) config() *Config { return c }

// CLI is a pointer to a struct of Kong flags that embeds [Config].
type CLI interface{ config() *Config }

// Logger returns a logger that writes to w with the level and format that c
// asks for. A zero level or format means its default.
func (c *Config) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // the flag takes levels only, and info is zero
	opts := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewJSONHandler(visible{w}, opts)
	if c.LogFormat == "text" || c.LogFormat != "json" && IsTerminal(w) {
		handler = slog.NewTextHandler(visible{w}, opts)
	}
	return slog.New(tracing.Handler{Handler: handler})
}

// IsTerminal reports whether a reader or writer is a terminal, for which it takes any
// character device. The only other one that programs usually write to or read from is
// /dev/null, where no format matters and no terminal answers.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// hideServiceFlags leaves the flags of services out of the help, and
// removes --config, whose file is theirs.
func hideServiceFlags(k *kong.Kong) error {
	k.Model.Flags = slices.DeleteFunc(k.Model.Flags, func(f *kong.Flag) bool { return f.Name == "config" })
	for _, f := range k.Model.Flags {
		switch f.Name {
		case "admin-addr", "admin-hosts", "log-bodies", "log-level", "log-format", "memory-budget", "stop-timeout", "pprof":
			f.Hidden = true
		}
	}
	return nil
}
