// Command ingest takes messages in over HTTP and writes them to the log.
package main

import (
	"context"
	"os"

	"github.com/alecthomas/kong"

	"rejoin/services/ingest"
	"rejoin/shared/daemon"
)

func main() {
	var cfg ingest.ProgramConfig
	os.Exit(daemon.Main("ingest", "Takes messages in over HTTP and writes them to the log.", &cfg,
		func(ctx context.Context, env daemon.Env) error { return ingest.Run(ctx, cfg, env) },
		kong.Vars{"admin_addr": "127.0.0.1:9081"}))
}
