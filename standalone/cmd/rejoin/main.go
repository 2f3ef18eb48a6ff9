// Command rejoin is all of Rejoin in one process, with a NATS server inside.
// "rejoin log" shows and changes what a log is set to; "rejoin token" makes a token;
// "rejoin publish" and "rejoin tail" use a Rejoin that runs.
package main

import (
	"context"
	"os"

	"rejoin/shared/daemon"
	"rejoin/standalone"
	"rejoin/standalone/logcli"
	"rejoin/standalone/streamcli"
	"rejoin/standalone/tokencli"
)

const description = "Resumable event streams: publish, stream, and continue exactly, all in one process. Other commands: rejoin log shows and changes what the log is set to, rejoin token makes a token for development, rejoin publish and rejoin tail publish messages and print events; each has a --help."

func main() {
	// Commands of their own, not of the parser's: they have flags of the same names,
	// and everything without them is the program as it always was.
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "log":
			os.Exit(logcli.Main(os.Args[2:]))
		case "token":
			os.Exit(tokencli.Main(os.Args[2:]))
		case "publish", "tail":
			os.Exit(streamcli.Main(os.Args[1:]))
		}
	}
	var cfg standalone.Config
	os.Exit(daemon.Main("rejoin", description, &cfg,
		func(ctx context.Context, env daemon.Env) error { return standalone.Run(ctx, cfg, env) },
		standalone.Options()...))
}
