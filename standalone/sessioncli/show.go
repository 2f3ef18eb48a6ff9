package sessioncli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"rejoin/shared/daemon"
)

// detail is a session with its streams.
type detail struct {
	session
	Streams []stream `json:"streams"`
}

type stream struct {
	Stream string    `json:"stream"`
	Events int       `json:"events"`
	Bytes  int64     `json:"bytes"`
	Newest time.Time `json:"newest"`
	Closed bool      `json:"closed"`
}

// list prints all sessions, page by page: each page's columns have their own widths, so
// that no more than a page is held.
func list(ctx context.Context, a *api, f ShowFlags, out io.Writer) error {
	t := newTable(out)
	if !f.JSON {
		_, _ = fmt.Fprintln(t, "SESSION\tSTATE\tSTREAMS\tEVENTS\tBYTES\tLAST ACTIVITY") // Flush has the error
	}
	for after, first := "", true; first || after != ""; first = false {
		p, err := a.list(ctx, f, after)
		if err != nil {
			return err
		}
		if f.JSON {
			err = printLines(out, p.Sessions...)
		} else {
			err = printSessions(t, p.Sessions)
		}
		if err != nil {
			return err
		}
		after = p.Next
	}
	return nil
}

func printSessions(t *tabwriter.Writer, all []json.RawMessage) error {
	for _, one := range all {
		var s session
		if err := decode(one, &s, "session"); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%s\n", plain(s.Session), plain(s.State), s.Streams, s.Events, s.Bytes, timeText(s.Activity))
	}
	return t.Flush()
}

func printDetail(d detail, out io.Writer) error {
	if _, err := fmt.Fprintf(out, "%s is %s: %d events, %d bytes, last activity %s\n", plain(d.Session), plain(d.State), d.Events, d.Bytes, timeText(d.Activity)); err != nil || len(d.Streams) == 0 {
		return err
	}
	t := newTable(out)
	_, _ = fmt.Fprintln(t, "STREAM\tSTATE\tEVENTS\tBYTES\tLAST ACTIVITY")
	for _, s := range d.Streams {
		state := "open"
		if s.Closed {
			state = "closed"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\n", plain(s.Stream), state, s.Events, s.Bytes, timeText(s.Newest))
	}
	return t.Flush()
}

// newTable returns a writer that aligns the cells of the rows between two flushes; a tab ends a cell.
func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }

// plain returns text that a terminal shows as it is: anything else is quoted.
func plain(text string) string {
	if text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// timeText is a time in the user's zone, to the second, or a dash when there is none.
func timeText(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.Local().Format("2006-01-02 15:04:05")
}

// printLines prints objects as the server sent them, each on a line of its own.
func printLines(out io.Writer, all ...json.RawMessage) error {
	var b bytes.Buffer
	for _, one := range all {
		if err := json.Compact(&b, one); err != nil {
			return fmt.Errorf("the response is not from Rejoin: %w", err)
		}
		b.WriteByte('\n')
	}
	_, err := out.Write(daemon.Escape(b.Bytes()))
	return err
}
