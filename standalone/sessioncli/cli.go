// Package sessioncli is the commands that ask a Rejoin that runs somewhere, and print its answers:
// "rejoin sessions", which also creates and closes them, "rejoin status", "rejoin gaps" and
// "rejoin connections".
package sessioncli

import (
	"context"
	"os"
	"strings"

	"github.com/alecthomas/kong"

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

// ShowFlags are those of "rejoin sessions show".
type ShowFlags struct {
	Session remote.Session `arg:"" optional:"" help:"The session; without one, list all."`
	State   string         `env:"-" enum:",open,closed" default:"" help:"List only open or only closed sessions." placeholder:"STATE"`
	Sort    string         `env:"-" enum:",bytes,events,activity" default:"" help:"Order of the list: bytes, events or activity, the largest or latest first; by default by name." placeholder:"ORDER"`
	JSON    bool           `name:"json" env:"-" help:"Print one JSON object per line for each session."`
}

// CreateFlags are those of "rejoin sessions create".
type CreateFlags struct {
	Session remote.Session `arg:"" optional:"" help:"The session's name; without one, the server chooses it."`
	Owner   string         `env:"-" help:"Owner of the session; for a token whose owners include that subject." placeholder:"SUBJECT"`
	Members []string       `env:"-" help:"Other users of the session, as far as their tokens permit: subjects, prefixes followed by *, or * for all." placeholder:"SUBJECT"`
}

// CloseFlags are those of "rejoin sessions close".
type CloseFlags struct {
	Session remote.Session `arg:"" help:"The session."`
	Stream  remote.Stream  `arg:"" optional:"" help:"The stream; without one, close the whole session."`
	Clear   bool           `env:"-" help:"Also delete the stored events."`
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

// Help is what --help says besides.
func (ShowFlags) Help() string {
	return `Last activity is the time of the newest event, or when the session was created or closed.

  rejoin sessions
  rejoin sessions demo
  rejoin sessions --sort=activity
  rejoin sessions --state=closed --json`
}

// Help is what --help says besides.
func (CreateFlags) Help() string {
	return `Without access control, the first message also creates its session.

  rejoin sessions create demo
  session=$(rejoin sessions create)
  rejoin sessions create --owner=alice --members=bob,carol`
}

// Help is what --help says besides.
func (CloseFlags) Help() string {
	return `Connected clients receive a close event. The name cannot be reused for 24 h
(--tombstone-ttl).

  rejoin sessions close demo
  rejoin sessions close demo main
  rejoin sessions close demo --clear`
}

// App is "rejoin sessions" with the arguments that follow it.
func App(args []string) daemon.App {
	var cli CLI
	return daemon.App{
		Name: "rejoin sessions", Description: description,
		CLI: &cli, Options: []kong.Option{kong.PostBuild(daemon.HideServiceFlags)}, Args: append([]string{}, args...),
		Run: cli.run,
	}
}

func (cli *CLI) run(ctx context.Context, env daemon.Env) error {
	a, done, err := newAPI(cli.Flags, os.Stderr)
	if err != nil {
		return err
	}
	defer done()
	command, _, _ := strings.Cut(env.Command, " ")
	switch {
	case command == "create":
		return create(ctx, a, cli.Create, env.Stdout)
	case command == "close":
		return a.close(ctx, cli.Close)
	case cli.Show.Session != "":
		return showOne(ctx, a, cli.Show, env.Stdout)
	default:
		return list(ctx, a, cli.Show, env.Stdout)
	}
}
