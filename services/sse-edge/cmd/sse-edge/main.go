// Command sse-edge streams events to clients.
package main

import (
	"context"
	"os"

	"github.com/alecthomas/kong"

	edge "rejoin/services/sse-edge"
	"rejoin/shared/daemon"
)

func main() {
	var cfg edge.ProgramConfig
	os.Exit(daemon.Main("sse-edge", "Streams events to clients, over Server-Sent Events and as pages of JSON.", &cfg,
		func(ctx context.Context, env daemon.Env) error { return edge.Run(ctx, cfg, env) },
		kong.Vars{"admin_addr": "127.0.0.1:9080"}))
}
