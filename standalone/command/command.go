// Package command is the command line of rejoin: it finds the command that the first
// argument names, and runs it. Each command has flags of its own, as some have the same
// names and mean other things.
package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"rejoin/shared/daemon"
	"rejoin/standalone"
	"rejoin/standalone/logcli"
	"rejoin/standalone/sessioncli"
	"rejoin/standalone/streamcli"
	"rejoin/standalone/tokencli"
)

// command is one of the commands.
type command struct {
	name, summary string
	app           func(args []string) daemon.App // args follow the name
	subs          []command                      // with flags of their own
}

// serveName is the command that needs no name.
const serveName = "serve"

func commands() []command {
	return []command{
		{name: serveName, summary: "Run everything in one process. Without a command, rejoin does this.", app: serve},
		{name: "publish", summary: "Publish messages: arguments, or lines of standard input.", app: streamcli.PublishApp},
		{name: "tail", summary: "Print the events of a stream, or of a whole session, as they arrive.", app: streamcli.TailApp},
		{name: "sessions", summary: "List, show, create and close sessions.", app: sessioncli.App},
		{name: "status", summary: "Show what an installation holds, and who is connected.", app: sessioncli.StatusApp},
		{name: "connections", summary: "Show who is connected to a session.", app: sessioncli.ConnectionsApp},
		{name: "gaps", summary: "Show the gaps that clients received within the last hour.", app: sessioncli.GapsApp},
		{name: "log", summary: "Show the log's settings and content, and change its limits.", app: logcli.App},
		{name: "token", summary: "Create a token for development.", app: tokencli.App, subs: []command{
			{name: "check", summary: "Check whether a token is accepted, and what it permits.", app: tokencli.CheckApp},
		}},
		{name: "config", summary: "Check a configuration file and the environment.", app: config},
		{name: "completion", summary: "Print a script that completes commands and flags in a shell.", app: completion},
	}
}

const description = `Run everything in one process: publish, stream, and resume exactly.

  rejoin
  rejoin serve --data=/var/lib/rejoin --max-age=24h
  rejoin serve --auth=jwt --jwt-secret-file=jwt.secret --jwt-audience=dev

All data is in the folder of --data, and is used again at the next start.`

func serve(args []string) daemon.App {
	var cfg standalone.Config
	return daemon.App{
		Name: "rejoin", Usage: "rejoin serve", Description: description,
		CLI: &cfg, Options: standalone.Options(), Args: append([]string{}, args...),
		WarnOfVariables: true, OtherVariables: variables(),
		Run: func(ctx context.Context, env daemon.Env) error { return standalone.Run(ctx, cfg, env) },
	}
}

// variables returns the environment variables of the commands other than serve, which may be set in the same shell.
func variables() (names []string) {
	for _, c := range commands() {
		if c.name == serveName {
			continue
		}
		for _, one := range append(c.subs, c) {
			names = append(names, one.app(nil).Variables()...)
		}
	}
	return names
}

// Main runs the command of the arguments that follow the program's name, and returns
// the process' exit code. It may be used once in a process.
func Main(args []string) int { return run(args, os.Stdout, os.Stderr) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
		_, _ = io.WriteString(stdout, help()) // nowhere left to report to
		return daemon.ExitOK
	}
	if len(args) > 1 && args[0] == "help" {
		args = append(args[1:len(args):len(args)], "--help")
	}
	if len(args) > 0 && args[0] == "version" {
		args = append([]string{"--version"}, args[1:]...)
	}
	if len(args) > 0 && args[0] == completeName {
		_, _ = io.WriteString(stdout, complete(places(), args[1:])) // a shell shows no error
		return daemon.ExitOK
	}
	name := serveName
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	for _, c := range commands() {
		if c.name == name {
			for _, sub := range c.subs {
				if len(args) > 0 && args[0] == sub.name {
					c, args = sub, args[1:]
				}
			}
			a := c.app(args)
			a.Stdout, a.Stderr = stdout, stderr
			return a.Main()
		}
	}
	hint := ""
	if near := nearest(name); near != "" {
		hint = fmt.Sprintf(", did you mean %q?", near)
	}
	_, _ = fmt.Fprintf(stderr, "rejoin: there is no command %q%s; see rejoin --help\n", name, hint)
	return daemon.ExitUsage
}

// help returns the text of rejoin --help.
func help() string {
	var b strings.Builder
	b.WriteString("Usage: rejoin [<command>] [flags]\n\nResumable event streams: publish, stream, and resume exactly.\n\nCommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-11s  %s\n", c.name, c.summary)
	}
	b.WriteString(`
Examples:
  rejoin
  rejoin publish demo main '{"order":17}'
  rejoin tail demo main
  rejoin sessions
  rejoin log set --max-age=2h
  source <(rejoin completion bash)

rejoin version prints the version.

Exit codes:
  0    success
  1    failure
  2    a command, a flag, an argument or an environment variable is wrong
  130  stopped at once by a second Ctrl-C

rejoin <command> --help shows the flags of a command, and more examples.
`)
	return b.String()
}

// sameBytes is how many first bytes of a name are enough to guess the command that the user meant.
const sameBytes = 4

// nearest returns the first command that begins as word does, or of which word is a typo; empty
// when there is none.
func nearest(word string) string {
	for _, c := range commands() {
		if strings.HasPrefix(c.name, word[:min(len(word), sameBytes)]) || daemon.IsTypo(word, c.name) {
			return c.name
		}
	}
	return ""
}
