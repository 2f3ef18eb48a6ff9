package streamcli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/template"
	"time"

	"rejoin/shared/client"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/flagtype"
	"rejoin/standalone/remote"
)

// TailCLI holds the flags of "rejoin tail".
type TailCLI struct {
	daemon.Config
	remote.Flags

	Session remote.Session `arg:"" help:"The session."`
	Stream  remote.Stream  `arg:"" optional:"" help:"The stream; without one, all streams of the session."`
	From    string         `xor:"place" env:"-" help:"Where to start: start, now, or the cursor to resume after; of a stream, that is an event ID (default: start)." placeholder:"PLACE"`
	Last    *int           `short:"n" xor:"place" env:"-" help:"Begin with the newest N events, at most 1000, or with all if there are fewer." placeholder:"N"`
	Since   sinceFlag      `xor:"place" env:"-" help:"Leave out events stored before: 5m ago, or a time such as 2026-11-25T12:00:00Z." placeholder:"TIME"`
	Count   int            `env:"-" help:"End after N events." placeholder:"N"`
	Method  []string       `env:"-" help:"Only JSON-RPC messages with these methods; a trailing * matches any suffix." placeholder:"METHOD"`
	Level   string         `env:"-" enum:",debug,info,notice,warning,error,critical,alert,emergency" default:"" help:"Leave out log messages below a level, from debug to emergency." placeholder:"LEVEL"`
	JSON    bool           `name:"json" xor:"form" env:"-" help:"Print JSON objects with id, cursor, stream, type, time and message, and gaps as objects too."`
	Format  string         `xor:"form" env:"-" help:"Print each event by a Go template with .ID, .Cursor, .Stream, .Type, .Time and .Message (default: {{.ID}} {{.Message}}, of a session {{.Cursor}} {{.Stream}} {{.Message}})." placeholder:"TEMPLATE"`

	format *template.Template
}

// maxLast is how many of the newest events an edge looks for.
const maxLast = 1000

// defaultFormat begins with the cursor for --from. That of a session is no event ID, so its
// events name their stream.
func (cli *TailCLI) defaultFormat() string {
	if cli.Stream == "" {
		return "{{.Cursor}} {{.Stream}} {{.Message}}"
	}
	return "{{.ID}} {{.Message}}"
}

// dimmed returns a format whose first field is dim, for a terminal with colours.
func dimmed(format string) *template.Template {
	first, rest, _ := strings.Cut(format, " ")
	return template.Must(template.New("event").Parse("\x1b[2m" + first + "\x1b[0m " + rest + "\n"))
}

// sinceFlag is a time, given as one or as how long ago it was; zero is none.
type sinceFlag time.Time

// UnmarshalText reads a duration or a time of RFC 3339.
func (s *sinceFlag) UnmarshalText(text []byte) error {
	if ago, err := flagtype.ParseDuration(string(text)); err == nil && ago >= 0 {
		*s = sinceFlag(time.Now().Add(-ago))
		return nil
	}
	at, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return fmt.Errorf("%q is neither a duration (5m, 2h, 1d) nor a time (2026-11-25T12:00:00Z)", text)
	}
	*s = sinceFlag(at)
	return nil
}

// Validate parses the template, and returns an error for the first wrong flag.
func (cli *TailCLI) Validate() (err error) {
	if cli.Count < 0 {
		return fmt.Errorf("--count: %d is negative", cli.Count)
	}
	if cli.Last != nil && (*cli.Last < 0 || *cli.Last > maxLast) {
		return fmt.Errorf("--last: %d is not a number from 0 to %d", *cli.Last, maxLast)
	}
	for _, method := range cli.Method {
		if method == "" || strings.Contains(method[:len(method)-1], "*") {
			return fmt.Errorf("--method: %q is not a method, which may end with an asterisk", method)
		}
	}
	if err := cli.checkFrom(); err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	text := cmp.Or(cli.Format, cli.defaultFormat())
	cli.format, err = template.New("event").Parse(text + "\n")
	if err == nil {
		err = cli.format.Execute(io.Discard, printed{})
	}
	if err != nil {
		return fmt.Errorf("--format: %w", err)
	}
	return nil
}

// checkFrom returns an error for a cursor that cannot belong to the stream or session: the server
// would report a gap and begin at the start.
func (cli *TailCLI) checkFrom() error {
	if cli.From == "" || cli.From == "start" || cli.From == "now" {
		return nil
	}
	id, err := event.ParseID(cli.From)
	switch {
	case err != nil:
		return fmt.Errorf("%q is neither start, now nor an event ID (%w); a time goes to --since", cli.From, err)
	case id.Stream == string(cli.Stream):
		return nil
	case cli.Stream == "":
		return fmt.Errorf("%q belongs to stream %s; give that stream, or a cursor of the session, which begins with *", cli.From, id.Stream)
	default:
		return fmt.Errorf("%q does not belong to stream %s", cli.From, cli.Stream)
	}
}

// printed are the fields of an event in a template.
type printed struct {
	ID, Cursor, Stream, Type, Time, Message string
}

// line is the JSON object of an event.
type line struct {
	ID      string          `json:"id"`
	Cursor  string          `json:"cursor"`
	Stream  string          `json:"stream"`
	Type    string          `json:"type"`
	Time    time.Time       `json:"time"`
	Message json.RawMessage `json:"message"`
}

func (cli *TailCLI) tail(ctx context.Context, out, status io.Writer) error {
	token, err := cli.Token()
	if err != nil {
		return err
	}
	server := newReport(status, cli.Shown())
	defer server.stop()
	server.asked()
	if cli.Format == "" && coloured(out) {
		cli.format = dimmed(cli.defaultFormat())
	}
	exists := true
	cfg := client.SubscriberConfig{
		URL: cli.URL, Token: token, Session: string(cli.Session), Stream: string(cli.Stream),
		Times: cli.JSON || cli.Format != "", Since: time.Time(cli.Since), Methods: cli.Method, Level: cli.Level,
		OnFailure: server.failed,
		OnConnect: func(c client.Connection) {
			server.answers()
			if exists && !c.Exists {
				server.say("%s does not exist yet; waiting", cli.what())
			}
			exists = c.Exists
		},
	}
	switch cli.From {
	case "", "start":
	case "now":
		cfg.Start = client.StartNow
	default:
		cfg.After = cli.From
	}
	if n := cli.Last; n != nil {
		if cfg.Last = *n; *n == 0 {
			cfg.Start = client.StartNow
		}
	}
	subscriber, err := client.NewSubscriber(cfg)
	if err != nil {
		return err
	}
	count := 0
	for e, err := range subscriber.Events(ctx) {
		if err == nil && e.Kind == client.KindMessage {
			count++
		}
		if err == nil {
			err = cli.print(e, out, status)
		}
		switch {
		case ctx.Err() != nil && !server.hasAnswered():
			return fmt.Errorf("interrupted; %s has never answered", cli.Shown())
		case ctx.Err() != nil:
			return nil // interrupted
		case err != nil:
			return cli.Hint(err)
		case cli.Count > 0 && count == cli.Count:
			return nil
		}
	}
	server.say("%s is closed", cli.what())
	return nil
}

// what names the stream or session.
func (cli *TailCLI) what() string {
	if cli.Stream == "" {
		return fmt.Sprintf("session %s", cli.Session)
	}
	return fmt.Sprintf("stream %s of session %s", cli.Stream, cli.Session)
}

// print prints an event: messages go to out, gaps there only with --json.
func (cli *TailCLI) print(e client.Event, out, status io.Writer) error {
	var b bytes.Buffer
	switch {
	case e.Kind == client.KindGap && cli.JSON:
		_, _ = fmt.Fprintf(&b, "%s\n", event.MustJSON(map[string]*client.Gap{"gap": e.Gap})) // a buffer takes all
	case e.Kind == client.KindGap:
		verb := "are"
		if !e.Gap.Certain {
			verb = "may be"
		}
		_, err := fmt.Fprintln(status, red(status, fmt.Sprintf("gap: events %s missing after %s (%s)", verb, e.Gap.Requested, e.Gap.Reason)))
		return err
	case cli.JSON:
		object, err := event.EncodeJSON(line{e.ID, e.Cursor, e.Stream, e.Type, e.Time, e.Message})
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(&b, "%s\n", object)
	default:
		var message bytes.Buffer
		if err := json.Compact(&message, e.Message); err != nil {
			return err
		}
		if err := cli.format.Execute(&b, printed{e.ID, e.Cursor, e.Stream, e.Type, e.Time.Format(time.RFC3339Nano), message.String()}); err != nil {
			return err
		}
	}
	_, err := out.Write(daemon.Escape(b.Bytes()))
	return err
}
