// Package daemon is the common part of all Rejoin programs: flags and
// environment, logging, signals, an admin port with health and metrics, and
// [Run], which runs the long-lived parts and stops them in order.
//
// A main function is a few lines:
//
//	type cli struct {
//		daemon.Config
//		NatsURL string `help:"…" default:"nats://127.0.0.1:4222"`
//	}
//
//	func main() {
//		var c cli
//		os.Exit(daemon.Main("ingest", "Takes messages in.", &c, func(ctx context.Context, env daemon.Env) error {
//			service, err := ingest.New(c.NatsURL, env)
//			if err != nil {
//				return err
//			}
//			return daemon.Run(ctx, c.Config, env, daemon.Actor{Name: "ingest", Run: service.Run})
//		}))
//	}
package daemon
