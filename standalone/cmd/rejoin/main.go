// Command rejoin is all of Rejoin in one process, with a NATS server inside.
// "rejoin log" shows and changes what a log is set to.
package main

import (
	"context"
	"os"

	"rejoin/shared/daemon"
	"rejoin/standalone"
	"rejoin/standalone/logcli"
)

const description = "Resumable event streams: publish, stream, and continue exactly, all in one process. Another command, rejoin log, shows and changes what the log is set to: see rejoin log --help."

func main() {
	// A command of its own, not one of the parser's: it has flags of the same names,
	// and everything without it is the program as it always was.
	if len(os.Args) > 1 && os.Args[1] == "log" {
		os.Exit(logcli.Main(os.Args[2:]))
	}
	var cfg standalone.Config
	os.Exit(daemon.Main("rejoin", description, &cfg,
		func(ctx context.Context, env daemon.Env) error { return standalone.Run(ctx, cfg, env) },
		standalone.Options()...))
}
