// Package sessioncli is the commands that ask a Rejoin that runs somewhere, and print its answers:
// "rejoin sessions", which also creates and closes them, "rejoin status", "rejoin gaps" and
// "rejoin connections".
package sessioncli

import (
	"context"
	"strings"

	"rejoin/shared/daemon"
	"rejoin/standalone/remote"
)

// CLI holds the flags of the commands.
type CLI struct {
	daemon.Config
	remote.Flags
	Show   ShowFlags   `cmd:"" default:"withargs" help:"List all sessions, or show one with its streams. This is the default command."`
	Create CreateFlags `cmd:"" help:"Create a session, and print its name."`
	Close  CloseFlags  `cmd:"" help:"Close a session or one of its streams permanently."`
}

const description = `List, show, create and close sessions.

  rejoin sessions
  rejoin sessions --sort=bytes | head
  rejoin sessions --state=open --json | jq -r .session
  rejoin sessions demo
  rejoin sessions create demo
  rejoin sessions close demo main

With access control, the list requires a token that grants admin. If a session has the
name of a command, use rejoin sessions show.`

// App is "rejoin sessions" with the arguments that follow it.
func App(args []string) daemon.App {
	var cli CLI
	return daemon.Command("rejoin sessions", description, &cli, args, cli.run)
}

func (cli *CLI) run(ctx context.Context, env daemon.Env) error {
	return ask(cli.Flags, func(a *api) error {
		command, _, _ := strings.Cut(env.Command, " ")
		switch {
		case command == "create":
			return a.create(ctx, cli.Create, env.Stdout)
		case command == "close":
			return a.close(ctx, cli.Close, env.Stdout)
		case cli.Show.Session != "":
			return show(ctx, a, pathOf(cli.Show.Session), "session", cli.Show.JSON, env.Stdout, printDetail, nil)
		default:
			return list(ctx, a, cli.Show, env.Stdout)
		}
	})
}
