package tokencli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"rejoin/shared/auth"
	"rejoin/shared/daemon"
)

// CheckCLI holds the flags of "rejoin token check": those of the server's access control.
type CheckCLI struct {
	daemon.Config
	Access auth.Config `embed:""`
	Token  string      `arg:"" optional:"" default:"-" help:"The token; - or none to read it from standard input, where other users of the machine cannot see it."`
}

const checkDescription = `Check whether a server with the same --auth and --jwt flags accepts a token.

  rejoin token check - <token
  rejoin token check --auth=jwt --jwt-key-file=key.pem --jwt-audience=dev "$token"
  REJOIN_AUTH=jwt rejoin token check - <token

It prints whose token it is, what it permits and when it expires. If the token is refused, it
prints why and what the token claims, and the exit code is 1.`

// maxToken bounds the read of standard input, in bytes; a longer token is malformed.
const maxToken = 64 << 10

// CheckApp is "rejoin token check" with the arguments that follow it.
func CheckApp(args []string) daemon.App { return checkApp(args, os.Stdin, time.Now) }

func checkApp(args []string, in io.Reader, now func() time.Time) daemon.App {
	var cli CheckCLI
	return daemon.Command("rejoin token check", checkDescription, &cli, args, func(ctx context.Context, env daemon.Env) error {
		return cli.check(ctx, in, env.Stdout, now())
	})
}

// Validate returns an error that names the first flag whose value makes no sense.
func (cli *CheckCLI) Validate() error {
	if err := cli.Access.Validate(); err != nil {
		return err
	}
	if !cli.Access.On() {
		return errors.New("without access control a server ignores tokens; use --auth=jwt and the --jwt flags of the server")
	}
	return nil
}

func (cli *CheckCLI) check(ctx context.Context, in io.Reader, out io.Writer, now time.Time) error {
	token := cli.Token
	if token == "-" {
		var text []byte
		var err error
		read := make(chan struct{})
		go func() { // nothing ends a read from a terminal but its input, or the process' end
			defer close(read)
			text, err = io.ReadAll(io.LimitReader(in, maxToken))
		}()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-read:
		}
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		token = string(text)
	}
	token = strings.TrimSpace(token)
	verifier, err := auth.NewVerifier(cli.Access, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	grants, err := verifier.Verify(ctx, token)
	switch {
	case errors.Is(err, auth.ErrUnavailable):
		return err
	case err != nil:
		return errors.Join(printClaims(out, token), fmt.Errorf("refused: %w", err))
	}
	admin := "no"
	if grants.Admin {
		admin = "yes"
	}
	expires := grants.Expires.Add(-auth.Leeway)
	left := expires.Sub(now).Round(time.Second)
	when := fmt.Sprintf("in %s", left)
	if left < 0 {
		when = fmt.Sprintf("%s ago, accepted for another %s", -left, left+auth.Leeway)
	}
	_, err = fmt.Fprintf(out, "accepted\nsubject    %q\npublish    %s\nsubscribe  %s\nowners     %s\nadmin      %s\nexpires    %s (%s)\n",
		grants.Subject, patterns(grants.Publish), patterns(grants.Subscribe), patterns(grants.Owners), admin,
		expires.Format(time.RFC3339), when)
	return err
}

// patterns lists patterns, or is a dash when there are none.
func patterns(all []auth.Pattern) string {
	if len(all) == 0 {
		return "-"
	}
	quoted := make([]string, len(all))
	for i, p := range all {
		quoted[i] = fmt.Sprintf("%q", p)
	}
	return strings.Join(quoted, ", ")
}

// printClaims prints the claims of a refused token, if they can be read.
func printClaims(out io.Writer, token string) error {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil
	}
	text, _ := base64.RawURLEncoding.DecodeString(parts[1])
	var claims map[string]json.RawMessage
	_ = json.Unmarshal(text, &claims) // otherwise there is nothing to print
	for _, name := range []string{"sub", "aud", "iss", "nbf", "exp", "rejoin"} {
		claim, ok := claims[name]
		if !ok {
			continue
		}
		shown := string(claim)
		if strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
			shown = strconv.QuoteToASCII(shown) // a terminal may obey it
		}
		var seconds float64
		if json.Unmarshal(claim, &seconds) == nil {
			shown += " (" + time.Unix(int64(seconds), 0).Format(time.RFC3339) + ")"
		}
		if _, err := fmt.Fprintf(out, "%-6s  %s\n", name, shown); err != nil {
			return err
		}
	}
	return nil
}
