// Command bridge stands beside an MCP server and connects it to the log.
package main

import (
	"context"
	"os"

	"github.com/alecthomas/kong"

	"rejoin/services/bridge"
	"rejoin/shared/daemon"
)

func main() {
	var cfg bridge.ProgramConfig
	os.Exit(daemon.Main("bridge", "Stands beside an MCP server and connects it to the log.", &cfg,
		func(ctx context.Context, env daemon.Env) error { return bridge.Run(ctx, cfg, env) },
		kong.Vars{"admin_addr": "127.0.0.1:9083"}))
}
