// Command rejoin is all of Rejoin in one process, with a NATS server inside.
package main

import (
	"context"
	"os"

	"rejoin/shared/daemon"
	"rejoin/standalone"
)

func main() {
	var cfg standalone.Config
	os.Exit(daemon.Main("rejoin", "Resumable event streams: publish, stream, and continue exactly, all in one process.", &cfg,
		func(ctx context.Context, env daemon.Env) error { return standalone.Run(ctx, cfg, env) },
		standalone.Options()...))
}
