package daemon

import (
	"cmp"
	"context"
	"encoding"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"rejoin/shared/flagtype"
	"rejoin/shared/metric"
	"rejoin/shared/quota"
)

// Exit codes of a program.
const (
	ExitOK    = 0
	ExitError = 1 // Run returned an error
	ExitUsage = 2 // a flag, an argument or an environment variable is wrong
)

// App is a program. Only Name, CLI and Run are required; the other fields
// exist so that a test can run a program without a process. The environment
// is always that of the process.
type App struct {
	// Name is the program's name in errors and --version.
	Name string

	// Usage is the command line that runs it, as help shows it. Default: Name.
	Usage string

	// Description is the sentence under the usage line of --help.
	Description string

	// CLI receives the flags.
	CLI CLI

	// Run is the program. Its ctx ends with the first SIGINT, SIGTERM or SIGHUP.
	Run func(ctx context.Context, env Env) error

	// Options are applied after the package's own: kong.Vars for defaults
	// such as admin_addr, for example.
	Options []kong.Option

	// WarnOfVariables makes Main log the REJOIN_… variables of the environment that are unknown.
	// OtherVariables are known besides those of the program's flags.
	WarnOfVariables bool
	OtherVariables  []string

	// Args are the arguments without the program's name. Nil: os.Args[1:].
	Args []string

	// Stdout and Stderr default to the process' own. Logs go to Stderr.
	Stdout, Stderr io.Writer

	// Signals replaces SIGINT, SIGTERM and SIGHUP of the process.
	Signals <-chan os.Signal

	// Exit is called on the second signal. Default: os.Exit.
	Exit func(code int)
}

// Main runs the program of the process' arguments and returns its exit code:
//
//	os.Exit(daemon.Main("ingest", "Takes messages in.", &cli, run))
//
// See [App.Main].
func Main(name, description string, cli CLI, run func(ctx context.Context, env Env) error, options ...kong.Option) int {
	return App{Name: name, Description: description, CLI: cli, Run: run, Options: options, WarnOfVariables: true}.Main()
}

// Command returns the program of a command that is not a service, with the arguments that follow
// it. Its help leaves out the flags of services, and it has no --config. One that returns [context.Canceled]
// after a signal was interrupted, which is an error, unlike the end of a service.
func Command(name, description string, cli CLI, args []string, run func(ctx context.Context, env Env) error) App {
	return App{
		Name: name, Description: description, CLI: cli,
		Run: func(ctx context.Context, env Env) error {
			err := run(ctx, env)
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return errors.New("interrupted")
			}
			return err
		},
		Options: []kong.Option{kong.PostBuild(hideServiceFlags)}, Args: append([]string{}, args...),
	}
}

// Main parses the arguments and the environment, checks them, runs the program, and
// returns its exit code. Before, it keeps the process' memory and environment from other
// processes of its user. The arguments "config check", before any flags, have a program with
// WarnOfVariables check its configuration instead; see [App.CheckConfig].
//
// The first SIGINT, SIGTERM or SIGHUP ends the context of Run; a program that then
// returns nil or [context.Canceled] exits with 0. The second one exits at
// once, with 128 and the signal's number (130 for SIGINT), unless it is SIGHUP. An error is
// printed to Stderr as one line, "name: error".
func (a App) Main() int {
	protect()
	a = a.withDefaults()
	if len(a.Args) > 1 && a.Args[0] == "config" && a.Args[1] == "check" && a.WarnOfVariables {
		a.Args = a.Args[2:]
		if err := a.CheckConfig(); err != nil {
			return a.fail(ExitError, err)
		}
		return ExitOK
	}
	command, code, done := a.parse()
	if done {
		return code
	}
	cfg := a.CLI.config()
	if cfg.Healthcheck {
		if err := checkReady(context.Background(), cfg.AdminAddr); err != nil {
			return a.fail(ExitError, err)
		}
		return ExitOK
	}
	log := cfg.Logger(a.Stderr)
	if a.WarnOfVariables {
		a.warnOfVariables(log)
	}
	if err := a.check(); err != nil {
		return a.refuse(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	health := new(Health)
	metric.GaugeFunc(registry, "rejoin_ready", "1 while the program is ready, as /readyz says, else 0.", health.metric)
	traces, closeTraces := openTraces(a.Name, log)
	env := Env{
		Log:        log,
		LogBodies:  cfg.LogBodies,
		Traces:     traces,
		Metrics:    registry,
		Memory:     cfg.memory(registry),
		Files:      quota.NewPool(quota.Files()),
		FreeMemory: debug.FreeOSMemory,
		Health:     health,
		Command:    command,
		Stdout:     a.Stdout,
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer a.watchSignals(cancel)()

	err := a.Run(ctx, env)
	closeTraces()
	if err == nil || (ctx.Err() != nil && errors.Is(err, context.Canceled)) {
		return ExitOK
	}
	return a.fail(ExitError, err)
}

// refuse prints an error of the settings and returns the exit code.
func (a App) refuse(err error) int {
	code := refusalCode(err)
	if code == ExitUsage {
		err = fmt.Errorf("%w; see %s --help", err, a.Usage)
	}
	return a.fail(code, err)
}

// refusalCode returns the exit code for settings that a check refuses. After [ExitUsage] systemd does not
// start the program again. So it is [ExitError] when nothing is wrong but a file, which may be written or
// mounted later.
func refusalCode(err error) int {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		code := ExitError
		for _, e := range joined.Unwrap() {
			code = max(code, refusalCode(e))
		}
		return code
	}
	if _, ok := errors.AsType[*flagtype.FileError](err); ok {
		return ExitError
	}
	return ExitUsage
}

func (a App) withDefaults() App {
	a.Usage = cmp.Or(a.Usage, a.Name)
	if a.Args == nil {
		a.Args = os.Args[1:]
	}
	a.Stdout, a.Stderr = cmp.Or[io.Writer](a.Stdout, os.Stdout), cmp.Or[io.Writer](a.Stderr, os.Stderr)
	if a.Exit == nil {
		a.Exit = os.Exit
	}
	return a
}

// Model returns the program's commands, arguments and flags. Nothing is parsed.
func (a App) Model() *kong.Application {
	return a.withDefaults().parser(&configFile{}, func(int) {}).Model
}

// parser panics if Kong cannot have the flags as they are declared.
func (a App) parser(file *configFile, exit func(code int)) *kong.Kong {
	options := append([]kong.Option{
		kong.Name(a.Usage),
		kong.Description(a.Description),
		kong.DefaultEnvars("REJOIN"),
		kong.Vars{"version": versionLine(a.Name), "admin_addr": "127.0.0.1:9080"},
		kong.Writers(a.Stdout, a.Stderr),
		kong.ValueFormatter(helpOf),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)),
		kong.KindMapper(reflect.Int, kong.MapperFunc(decodeNumber)),
		kong.KindMapper(reflect.Int64, kong.MapperFunc(decodeNumber)),
		kong.NamedMapper("limit", refuseZero("must be positive, or -1 for no limit")),
		kong.NamedMapper("positive", refuseZero("must be at least 1")),
		kong.Bind(file),
		kong.PostBuild(ignoreEmptyPaths),
		kong.Exit(exit),
	}, a.Options...)
	return kong.Must(a.CLI, options...)
}

// parse fills a.CLI. With done the program is over, as after --help.
func (a App) parse() (command string, code int, done bool) {
	// Kong continues parsing after exit returned; its later errors do not matter.
	parsed, err := a.parser(&configFile{ignored: map[string]bool{}}, func(c int) { code, done = c, true }).Parse(a.Args)
	switch {
	case done:
		return "", code, true
	case err != nil:
		return "", a.refuse(err), true
	default:
		return parsed.Command(), ExitOK, false
	}
}

// decodeDuration reads durations, of days too.
func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := flagtype.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration (examples: 90m, 24h, 7d)", text)
	}
	target.SetInt(int64(d))
	return nil
}

// decodeNumber reads whole numbers in base 10, and types that read text: to Kong 0100 is octal, and 1_000 a
// number.
func decodeNumber(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("number", &text); err != nil {
		return err
	}
	if own, ok := target.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return own.UnmarshalText([]byte(text))
	}
	n, err := strconv.ParseInt(text, 10, target.Type().Bits())
	if err != nil {
		return fmt.Errorf("%q is not a whole number, or too large", text)
	}
	target.SetInt(n)
	return nil
}

// refuseZero returns a mapper for flags that do not take 0: in the services' configurations it is the default
// of some fields and no limit for others.
func refuseZero(want string) kong.Mapper {
	return kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
		if err := decodeNumber(ctx, target); err != nil {
			return err
		}
		if target.IsZero() {
			return errors.New(want)
		}
		return nil
	})
}

// ignoreEmptyPaths makes an empty variable of the environment name no file. To Kong it is
// the folder that the program runs in.
func ignoreEmptyPaths(k *kong.Kong) error {
	return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
		if f, ok := node.(*kong.Flag); ok && f.Tag.Type == "path" {
			f.Tag.Envs = slices.DeleteFunc(f.Tag.Envs, func(name string) bool {
				value, set := os.LookupEnv(name)
				return set && value == ""
			})
		}
		return next(nil)
	})
}

// helpOf adds a flag's default to its help where Kong leaves it out: beside a
// placeholder, and of a switch that is on.
func helpOf(value *kong.Value) string {
	v := *value
	if f := v.Flag; f != nil && f.HasDefault && f.Default != "" && (f.PlaceHolder != "" || v.IsBool()) {
		v.Help = strings.TrimSuffix(v.Help, ".") + " (default: " + f.Default + ")."
	}
	return kong.DefaultHelpValueFormatter(&v)
}

// fail prints err in one line and returns code. An actor may have the program's name.
func (a App) fail(code int, err error) int {
	line := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
	line = strings.TrimPrefix(line, a.Name+": ")
	_, _ = fmt.Fprintf(a.Stderr, "%s: %s\n", a.Name, line) // nowhere left to report to
	return code
}

// watchSignals calls cancel on the first signal and a.Exit on the second,
// until the function that it returns is called, which waits for its
// goroutine.
func (a App) watchSignals(cancel context.CancelFunc) (stop func()) {
	signals := a.Signals
	unsubscribe := func() {}
	if signals == nil {
		own := make(chan os.Signal, 2)
		signal.Notify(own, syscall.SIGINT, syscall.SIGTERM)
		if !signal.Ignored(syscall.SIGHUP) { // as under nohup
			signal.Notify(own, syscall.SIGHUP) // a terminal that closes
		}
		signals, unsubscribe = own, func() { signal.Stop(own) }
	}
	over, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-signals:
			cancel()
		case <-over:
			return
		}
		for {
			select {
			case s := <-signals:
				if s == syscall.SIGHUP {
					continue // the kernel and the shell both send it
				}
				code := ExitError
				if number, ok := s.(syscall.Signal); ok {
					code = 128 + int(number)
				}
				a.Exit(code)
			case <-over:
			}
			return
		}
	}()
	return func() {
		unsubscribe()
		close(over)
		<-watched
	}
}
