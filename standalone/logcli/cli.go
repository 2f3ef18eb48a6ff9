// Package logcli is the command "rejoin log": it shows the settings and the contents of a
// log, and changes its limits while everything runs. The log belongs to a standalone
// program, or to services on a NATS server of their own.
package logcli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
)

// CLI holds the flags of the commands.
type CLI struct {
	daemon.Config
	Backend backend.Config `embed:""`
	Show    ShowFlags      `cmd:"" help:"Show the log's settings, and the content of each partition."`
	Set     SetFlags       `cmd:"" help:"Change limits of the log, without a restart."`
}

// Validate returns an error when a setting makes no sense for any log.
func (cli *CLI) Validate(kctx *kong.Context) error {
	if kctx.Command() != "set" {
		return nil
	}
	_, err := cli.Set.to(eventlog.DefaultSettings())
	return err
}

const description = `Show the log's settings and content, and change its limits.

  rejoin log show
  rejoin log show --json --nats-url=nats://nats.example:4222
  rejoin log set --max-age=2h --max-events-per-stream=20000`

// App is "rejoin log" with the arguments that follow it.
func App(args []string) daemon.App { return app(new(CLI), args, os.Stdin) }

func app(cli *CLI, args []string, stdin *os.File) daemon.App {
	return daemon.Command("rejoin log", description, cli, args, func(ctx context.Context, env daemon.Env) error {
		l, done, err := open(ctx, cli.Backend)
		if err != nil {
			return err
		}
		defer done()
		if env.Command == "show" {
			return show(ctx, l, cli.Show, env.Stdout)
		}
		if !daemon.IsTerminal(stdin) {
			return set(ctx, l, cli.Set, env.Stdout, nil)
		}
		return set(ctx, l, cli.Set, env.Stdout, stdin)
	})
}

// openWithin is how long a log may take to answer.
const openWithin = 5 * time.Second

// open opens a log that is there. An error is one sentence for the user. The
// function it returns closes the log.
func open(ctx context.Context, cfg backend.Config) (*eventlog.Log, func(), error) {
	quiet := slog.New(slog.DiscardHandler)
	nc, err := cfg.Connect("rejoin log", quiet, nats.RetryOnFailedConnect(false), nats.NoReconnect())
	if err != nil {
		return nil, nil, fmt.Errorf("cannot connect to NATS at %s (%w); start rejoin, or set the address of NATS with --nats-url (with --auth=jwt, rejoin needs --nats-addr, and this command --nats-nkey=data/nats.nk)", withoutSecrets(cfg.NATSURL), err)
	}
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	l, err := eventlog.OpenToShow(ctx, nc, quiet)
	if err != nil {
		nc.Close()
		if errors.Is(err, eventlog.ErrNotFound) {
			return nil, nil, fmt.Errorf("there is no log at %s", withoutSecrets(cfg.NATSURL))
		}
		return nil, nil, err
	}
	return l, func() {
		l.Close()
		nc.Close()
	}, nil
}

// withoutSecrets leaves user, password and token out of a list of URLs.
func withoutSecrets(urls string) string {
	all := strings.Split(urls, ",")
	for i, s := range all {
		if at := strings.LastIndex(s, "@"); at >= 0 {
			scheme, _, _ := strings.Cut(s, "://")
			s = scheme + "://" + s[at+1:]
		}
		if u, err := url.Parse(s); err == nil {
			s = u.String()
		}
		all[i] = s
	}
	return strings.Join(all, ",")
}
