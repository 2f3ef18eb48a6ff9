// Command janitor creates the log, keeps it within its limits, and knows which entries are removed from it.
package main

import (
	"context"
	"os"

	"github.com/alecthomas/kong"

	"rejoin/services/janitor"
	"rejoin/shared/daemon"
)

func main() {
	var cfg janitor.ProgramConfig
	os.Exit(daemon.Main("janitor", "Creates the log, keeps it tidy, and knows what is gone from it.", &cfg,
		func(ctx context.Context, env daemon.Env) error { return janitor.Run(ctx, cfg, env) },
		kong.Vars{"admin_addr": "127.0.0.1:9082"}))
}
