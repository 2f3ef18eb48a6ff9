// Package streamcli is the commands "rejoin publish" and "rejoin tail": they publish
// what comes in, and print what comes out, of a Rejoin that runs somewhere.
package streamcli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"rejoin/shared/client"
	"rejoin/shared/daemon"
)

// CLI holds the flags of the commands.
type CLI struct {
	daemon.Config

	URL       string       `name:"url" default:"http://127.0.0.1:8080" help:"Where Rejoin is." placeholder:"URL"`
	TokenFile string       `type:"path" help:"File with a bearer token, read before every request, so that it can be renewed." placeholder:"FILE"`
	Publish   PublishFlags `cmd:"" help:"Publish messages from standard input, one on each line."`
	Tail      TailFlags    `cmd:"" help:"Print the events of a stream, or of a whole session, as they come."`
}

const description = `Publish messages, and print events as they come.

  echo '{"jsonrpc":"2.0","method":"count"}' | rejoin publish demo main
  rejoin tail demo main
  rejoin tail demo --json --from=now

Both go on when connections break, and lose and repeat nothing: publish sends what got
no answer again under the same key, and tail comes back with the last event ID.`

// Main runs the command that args ask for, which begin with "publish" or "tail", and
// returns the process' exit code. It may be used once in a process.
func Main(args []string) int {
	var cli CLI
	return app(&cli, args, os.Stdin, os.Stderr).Main()
}

func app(cli *CLI, args []string, in io.Reader, status io.Writer) daemon.App {
	return daemon.App{
		Name: "rejoin", Description: description,
		CLI: cli, Options: []kong.Option{kong.PostBuild(daemon.HideServiceFlags)}, Args: append([]string{}, args...),
		Run: func(ctx context.Context, env daemon.Env) error {
			if strings.HasPrefix(env.Command, "publish") {
				return cli.publish(ctx, in, status)
			}
			return cli.tail(ctx, env.Stdout, status)
		},
	}
}

// token returns what asks for a token, or nil when none is needed. The error says that
// there is none now.
func (cli *CLI) token() (client.TokenFunc, error) {
	if cli.TokenFile == "" {
		return nil, nil
	}
	read := func(context.Context) (string, error) {
		token, err := os.ReadFile(cli.TokenFile)
		if err != nil {
			return "", fmt.Errorf("the file of --token-file cannot be read: %w", err)
		}
		return strings.TrimSpace(string(token)), nil
	}
	_, err := read(context.Background())
	return read, err
}
