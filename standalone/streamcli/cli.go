// Package streamcli is the commands "rejoin publish" and "rejoin tail": they publish
// messages to a Rejoin that runs somewhere, and print its events.
package streamcli

import (
	"context"
	"io"
	"os"

	"rejoin/shared/daemon"
)

const publishDescription = `Publish messages: the arguments, or standard input, one per line.

  rejoin publish demo main '{"order":17}'
  echo '{"order":17}' | rejoin publish demo main
  rejoin publish demo main --type=tick <messages.ndjson

It reconnects when a connection breaks, and sends unanswered messages again under the same key, so
that none is stored twice. A line that was sent and has no answer for 110 s is reported as unknown,
and the exit code is 1.`

const tailDescription = `Print the events of a stream, or of a whole session, as they arrive.

  rejoin tail demo main
  rejoin tail demo --from=now
  rejoin tail demo main -n 20
  rejoin tail demo main --since=5m --count=10
  rejoin tail demo main --json --from=main_e08tnxp_3

It reconnects when a connection breaks and resumes after the last event ID: each event comes once and in
order, or a line says which events are missing.`

// PublishApp is "rejoin publish" with the arguments that follow it.
func PublishApp(args []string) daemon.App { return publishApp(args, os.Stdin, os.Stderr) }

// TailApp is "rejoin tail" with the arguments that follow it.
func TailApp(args []string) daemon.App { return tailApp(args, os.Stderr) }

func publishApp(args []string, in io.Reader, status io.Writer) daemon.App {
	var cli PublishCLI
	return daemon.Command("rejoin publish", publishDescription, &cli, args, func(ctx context.Context, _ daemon.Env) error {
		return cli.publish(ctx, in, status)
	})
}

func tailApp(args []string, status io.Writer) daemon.App {
	var cli TailCLI
	return daemon.Command("rejoin tail", tailDescription, &cli, args, func(ctx context.Context, env daemon.Env) error {
		return cli.tail(ctx, env.Stdout, status)
	})
}
