package sessioncli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"rejoin/shared/daemon"
	"rejoin/shared/flagtype"
	"rejoin/shared/inspect"
	"rejoin/standalone/remote"
)

// StatusFlags are those of the commands that print the state of the janitor and the edges.
type StatusFlags struct {
	daemon.Config
	remote.Flags
	JSON bool `name:"json" env:"-" help:"Print the JSON that the server sent."`
}

// ListFlags are those of the commands that print a list.
type ListFlags struct {
	StatusFlags
	Limit int `env:"-" default:"100" help:"Maximum number of lines, up to 500; the newest are printed." placeholder:"N"`
}

// Validate refuses a number of lines that the server would refuse.
func (f *ListFlags) Validate() error {
	if f.Limit < 1 || f.Limit > inspect.MaxItems {
		return fmt.Errorf("--limit: %d is not a number from 1 to %d", f.Limit, inspect.MaxItems)
	}
	return nil
}

// connectionsCLI holds the flags of "rejoin connections".
type connectionsCLI struct {
	ListFlags
	Session remote.Session `arg:"" help:"The session."`
}

const statusDescription = `Print what an installation holds, who is connected, and which sessions are close to a limit.

  rejoin status
  rejoin status --url=https://rejoin.example --token-file=token
  rejoin status --json | jq .limits.retained

With access control it requires a token that grants admin.`

const gapsDescription = `Print the gaps that clients received within the last hour, the newest first.

  rejoin gaps
  rejoin gaps --limit=10
  rejoin gaps --json | jq .reasons

With access control it requires a token that grants admin. Edges keep gaps in memory only.`

const connectionsDescription = `Print the event streams of a session at all edges, the newest first.

  rejoin connections demo
  rejoin connections demo --json | jq '.connections[] | select(.behind > 100)'

With access control it requires a token that grants admin.`

// StatusApp is "rejoin status" with the arguments that follow it.
func StatusApp(args []string) daemon.App {
	var cli StatusFlags
	return daemon.Command("rejoin status", statusDescription, &cli, args, func(ctx context.Context, env daemon.Env) error {
		return ask(cli.Flags, func(a *api) error { return status(ctx, a, cli.JSON, env.Stdout) })
	})
}

// GapsApp is "rejoin gaps" with the arguments that follow it.
func GapsApp(args []string) daemon.App {
	var cli ListFlags
	return daemon.Command("rejoin gaps", gapsDescription, &cli, args, func(ctx context.Context, env daemon.Env) error {
		return ask(cli.Flags, func(a *api) error {
			return show(ctx, a, fmt.Sprintf("/v1/gaps?limit=%d", cli.Limit), "edges", cli.JSON, env.Stdout, printGaps, nil)
		})
	})
}

// ConnectionsApp is "rejoin connections" with the arguments that follow it.
func ConnectionsApp(args []string) daemon.App {
	var cli connectionsCLI
	return daemon.Command("rejoin connections", connectionsDescription, &cli, args, func(ctx context.Context, env daemon.Env) error {
		path := fmt.Sprintf("%s/connections?limit=%d", pathOf(cli.Session), cli.Limit)
		return ask(cli.Flags, func(a *api) error {
			return show(ctx, a, path, "edges", cli.JSON, env.Stdout, printConnections, func(c connections) (err error) {
				if c.Total == 0 { // a client may wait for a session that does not exist yet
					_, err = a.do(ctx, "GET", pathOf(cli.Session), nil)
				}
				return err
			})
		})
	})
}

// ask calls do with an api of the Rejoin that the flags name.
func ask(f remote.Flags, do func(a *api) error) error {
	a, err := newAPI(f, os.Stderr)
	if err != nil {
		return err
	}
	return do(a)
}

// edges counts the edges that have contributed to an answer.
type edges struct {
	Answered  int
	Silent    int
	Reachable bool
}

func (e edges) String() string {
	switch {
	case !e.Reachable:
		return "unknown, since NATS is unavailable"
	case e.Silent > 0:
		return fmt.Sprintf("%d, and %d that did not answer", e.Answered, e.Silent)
	default:
		return fmt.Sprint(e.Answered)
	}
}

// limits are the fields of GET /v1/limits that status shows.
type limits struct {
	Partitions int // of the janitor that answers
	Version    string
	Stored     uint64
	LogBytes   int64
	MaxAge     float64 // seconds
	Retained   struct {
		Sessions, Streams, Events int
		Bytes                     int64
	}
	Total    int
	Sessions []struct {
		Session, Limit string
		Share          float64
		Events         int
		Bytes          int64
		OpenStreams    int
	}
}

// gaps is the body of GET /v1/gaps.
type gaps struct {
	Edges   edges
	Since   time.Time
	Clients int
	Total   int
	Reasons map[string]int
	Gaps    []struct {
		Time                                        time.Time
		Session, Stream, Address, Reason, Requested string
		Certain                                     *bool
	}
}

// connections is the body of GET /v1/sessions/{session}/connections.
type connections struct {
	Edges       edges
	Clients     int
	Total       int
	Connections []struct {
		Edge, Host, Stream, Protocol, Address, Came, State, CursorID string
		Since                                                        time.Time
		Events                                                       int64
		Behind                                                       int
	}
}

// show prints the answer to one request, which has a field, as it is or as text, unless check returns an error; a
// nil check accepts every answer.
func show[T any](ctx context.Context, a *api, path, field string, asJSON bool, out io.Writer, text func(T, io.Writer) error, check func(T) error) error {
	body, err := a.do(ctx, "GET", path, nil)
	var answer T
	if err == nil {
		err = decode(body, &answer, field)
	}
	if err == nil && check != nil {
		err = check(answer)
	}
	switch {
	case err != nil:
		return err
	case asJSON:
		return printLines(out, body)
	default:
		return text(answer, out)
	}
}

// status prints the answers to three requests; as JSON in one object.
func status(ctx context.Context, a *api, asJSON bool, out io.Writer) error {
	var raw struct {
		Limits   json.RawMessage `json:"limits"`
		Gaps     json.RawMessage `json:"gaps"`
		Sessions json.RawMessage `json:"sessions"`
	}
	for _, one := range []struct {
		path string
		body *json.RawMessage
	}{{"/v1/limits", &raw.Limits}, {"/v1/gaps?limit=1", &raw.Gaps}, {"/v1/sessions?limit=1", &raw.Sessions}} {
		body, err := a.do(ctx, "GET", one.path, nil)
		if err != nil {
			return err
		}
		*one.body = body
	}
	var l limits
	var g gaps
	var s struct{ Total int }
	if err := cmp.Or(decode(raw.Limits, &l, "version"), decode(raw.Gaps, &g, "edges"), decode(raw.Sessions, &s, "sessions")); err != nil {
		return err
	}
	if asJSON {
		body, _ := json.Marshal(raw) // decoded JSON can be encoded
		return printLines(out, body)
	}
	size := flagtype.FormatBytes(l.Retained.Bytes) + " bytes"
	if l.LogBytes > 0 {
		size += fmt.Sprintf(" of %s, %d %%", flagtype.FormatBytes(l.LogBytes), l.Retained.Bytes*100/l.LogBytes)
	}
	age := "unlimited"
	if l.MaxAge > 0 {
		age = flagtype.FormatDuration(time.Duration(l.MaxAge * float64(time.Second)))
	}
	clients, gapped := fmt.Sprint(g.Clients), fmt.Sprintf("%d since %s", g.Total, timeText(g.Since))
	if g.Edges.Answered == 0 {
		clients, gapped = "unknown", "unknown"
	}
	t := newTable(out)
	for _, fact := range [][2]string{
		{"server", plain(a.flags.Shown())},
		{"version", plain(l.Version)},
		{"janitor", fmt.Sprintf("acts for %d partitions", l.Partitions)},
		{"edges", g.Edges.String()},
		{"clients", clients},
		{"sessions", fmt.Sprintf("%d (%d with events, in %d streams)", s.Total, l.Retained.Sessions, l.Retained.Streams)},
		{"events", fmt.Sprint(l.Retained.Events)},
		{"size", size},
		{"retention", age},
		{"entries", fmt.Sprintf("%d stored in all", l.Stored)},
		{"gaps", gapped},
		{"near limit", fmt.Sprintf("sessions: %d", l.Total)},
	} {
		_, _ = fmt.Fprintf(t, "%s\t%s\n", fact[0], fact[1]) // Flush has the error
	}
	if err := t.Flush(); err != nil || len(l.Sessions) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(t, "\nSESSION\tLIMIT\tUSED\tEVENTS\tBYTES\tSTREAMS")
	for _, one := range l.Sessions {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%.0f %%\t%d\t%d\t%d\n", plain(one.Session), plain(one.Limit), one.Share*100, one.Events, one.Bytes, one.OpenStreams)
	}
	return t.Flush()
}

func printGaps(g gaps, out io.Writer) error {
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(g.Reasons)) {
		reasons = append(reasons, fmt.Sprintf("%s: %d", plain(reason), g.Reasons[reason]))
	}
	line := fmt.Sprintf("gaps since %[2]s: %[1]d; edges: %[3]s", g.Total, timeText(g.Since), g.Edges)
	if len(reasons) > 0 {
		line += "; " + strings.Join(reasons, ", ")
	}
	if _, err := fmt.Fprintln(out, line); err != nil || len(g.Gaps) == 0 {
		return err
	}
	t := newTable(out)
	_, _ = fmt.Fprintln(t, "TIME\tSESSION\tSTREAM\tREASON\tMISSING\tREQUESTED\tADDRESS")
	for _, one := range g.Gaps {
		missing := "perhaps"
		if one.Certain != nil && *one.Certain {
			missing = "yes"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", timeText(one.Time), plain(one.Session), dash(one.Stream), plain(one.Reason), missing, dash(one.Requested), dash(one.Address))
	}
	return t.Flush()
}

func printConnections(c connections, out io.Writer) error {
	if _, err := fmt.Fprintf(out, "event streams: %d; clients: %d; edges: %s\n", c.Total, c.Clients, c.Edges); err != nil || len(c.Connections) == 0 {
		return err
	}
	t := newTable(out)
	_, _ = fmt.Fprintln(t, "SINCE\tSTREAM\tPROTOCOL\tADDRESS\tSTARTED\tSTATE\tEVENTS\tBEHIND\tCURSOR\tEDGE")
	for _, one := range c.Connections {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", timeText(one.Since), dash(one.Stream), plain(one.Protocol), dash(one.Address),
			plain(one.Came), plain(one.State), one.Events, one.Behind, dash(one.CursorID), plain(cmp.Or(one.Host, one.Edge)))
	}
	return t.Flush()
}

// dash is text, or a dash when there is none.
func dash(text string) string {
	if text == "" {
		return "-"
	}
	return plain(text)
}
