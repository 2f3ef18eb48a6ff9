// Package tokencli is the commands "rejoin token", which makes a token for development, where the
// secret is at hand, and "rejoin token check", which prints whether a server would accept a
// token. In production, a program that knows the users makes the tokens.
package tokencli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rejoin/shared/auth"
	"rejoin/shared/daemon"
)

// CLI holds the flags of the command. Those that a server has as well may be given in
// the same environment variables, so that a token fits the server beside it.
type CLI struct {
	daemon.Config

	SecretFile string `name:"jwt-secret-file" type:"path" required:"" help:"File with the shared secret of the server." placeholder:"FILE"`
	Audience   string `name:"jwt-audience" required:"" help:"The token's audience, the same as the server's." placeholder:"NAME"`
	Issuer     string `name:"jwt-issuer" help:"The token's issuer, the same as the server's." placeholder:"NAME"`

	Subject   string         `env:"-" required:"" help:"Subject of the token: the owner of the sessions it creates." placeholder:"NAME"`
	Publish   []auth.Pattern `env:"-" help:"Sessions it may create, publish to and close: a name, a prefix followed by *, or * for all." placeholder:"PATTERN"`
	Subscribe []auth.Pattern `env:"-" help:"Sessions it may read." placeholder:"PATTERN"`
	Owners    []auth.Pattern `env:"-" help:"Other subjects whose sessions it may use in the same way: a subject, a prefix followed by *, or * for all."`
	Admin     bool           `env:"-" help:"Allow it to see the retained data of all sessions."`
	TTL       time.Duration  `name:"ttl" env:"-" default:"1h" help:"How long the token is valid."`
}

const description = `Create a token for development, and print it.

Create a secret, and start a server that accepts its tokens:

  head -c 32 /dev/urandom | base64 > jwt.secret
  export REJOIN_JWT_SECRET_FILE=jwt.secret REJOIN_JWT_AUDIENCE=dev
  rejoin --auth=jwt

Create a token with all permissions for alice, and use it:

  token=$(rejoin token --subject=alice --publish='*' --subscribe='*')
  curl -H "Authorization: Bearer $token" -X POST http://127.0.0.1:8080/v1/sessions

Create one that only reads sessions whose names begin with chat-, valid for five minutes:

  rejoin token --subject=alice --subscribe='chat-*' --ttl=5m

Create one for a service that publishes to the sessions of all users:

  rejoin token --subject=backend --publish='*' --owners='*'

Check a token: rejoin token check --help.`

// App is "rejoin token" with the arguments that follow it.
func App(args []string) daemon.App { return app(new(CLI), args, time.Now) }

func app(cli *CLI, args []string, now func() time.Time) daemon.App {
	return daemon.Command("rejoin token", description, cli, args, func(_ context.Context, env daemon.Env) error {
		token, err := cli.token(now())
		if err == nil {
			_, err = fmt.Fprintln(env.Stdout, token)
		}
		return err
	})
}

// Validate returns an error that names the first flag whose value makes no sense.
func (cli *CLI) Validate() error {
	if cli.TTL < time.Second {
		return fmt.Errorf("--ttl must be at least 1s, not %s", cli.TTL)
	}
	if cli.Audience == "" {
		return errors.New("--jwt-audience is empty")
	}
	if err := auth.CheckSubject(cli.Subject); err != nil {
		return fmt.Errorf("--subject: %w", err)
	}
	for _, patterns := range []struct {
		flag string
		all  []auth.Pattern
	}{{"--publish", cli.Publish}, {"--subscribe", cli.Subscribe}} {
		for _, p := range patterns.all {
			if err := p.Check(); err != nil {
				return fmt.Errorf("%s takes session names, prefixes followed by *, or *: %w", patterns.flag, err)
			}
		}
	}
	for _, p := range cli.Owners {
		if err := p.CheckSubject(); err != nil {
			return fmt.Errorf("--owners takes subjects, prefixes followed by *, or *: %w", err)
		}
	}
	if len(cli.Publish) == 0 && len(cli.Subscribe) == 0 && !cli.Admin {
		return errors.New("the token would grant nothing; use --publish, --subscribe or --admin")
	}
	return nil
}

// token returns the token. An error is one sentence for the user.
func (cli *CLI) token(now time.Time) (string, error) {
	secret, err := auth.ReadSecret(cli.SecretFile)
	if err != nil {
		return "", err
	}
	return auth.Token{
		Subject: cli.Subject, Audience: cli.Audience, Issuer: cli.Issuer,
		Publish: cli.Publish, Subscribe: cli.Subscribe, Owners: cli.Owners, Admin: cli.Admin,
		Issued: now, Expires: now.Add(cli.TTL),
	}.Sign(secret)
}
