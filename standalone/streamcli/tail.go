package streamcli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"rejoin/shared/client"
	"rejoin/shared/daemon"
	"rejoin/standalone/remote"
)

// TailCLI holds the flags of "rejoin tail".
type TailCLI struct {
	daemon.Config
	remote.Flags

	Session remote.Session `arg:"" help:"The session."`
	Stream  remote.Stream  `arg:"" optional:"" help:"The stream; without one, all streams of the session."`
	From    string         `env:"-" default:"start" help:"Where to start: start, now, or the event ID to resume after." placeholder:"PLACE"`
	JSON    bool           `name:"json" env:"-" help:"Print JSON objects with id, stream, type, time and message, and gaps as objects too."`
}

// line is what --json prints of an event.
type line struct {
	ID      string          `json:"id"`
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
	cfg := client.SubscriberConfig{URL: cli.URL, Token: token, Session: string(cli.Session), Stream: string(cli.Stream), Times: cli.JSON}
	switch cli.From {
	case "start":
	case "now":
		cfg.Start = client.StartNow
	default:
		cfg.After = cli.From
	}
	subscriber, err := client.NewSubscriber(cfg)
	if err != nil {
		return err
	}
	for e, err := range subscriber.Events(ctx) {
		if err == nil {
			err = cli.print(e, out, status)
		}
		switch {
		case ctx.Err() != nil:
			return nil // told to stop
		case err != nil:
			return err
		}
	}
	return nil
}

// print prints an event: messages go to out, gaps there only with --json.
func (cli *TailCLI) print(e client.Event, out, status io.Writer) error {
	var b bytes.Buffer
	switch {
	case e.Kind == client.KindGap && cli.JSON:
		if err := json.NewEncoder(&b).Encode(map[string]*client.Gap{"gap": e.Gap}); err != nil {
			return err
		}
	case e.Kind == client.KindGap:
		verb := "are"
		if !e.Gap.Certain {
			verb = "may be"
		}
		_, err := fmt.Fprintf(status, "gap: events %s missing after %s (%s)\n", verb, e.Gap.Requested, e.Gap.Reason)
		return err
	case cli.JSON:
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(line{e.ID, e.Stream, e.Type, e.Time, e.Message}); err != nil {
			return err
		}
	default:
		if err := json.Compact(&b, e.Message); err != nil {
			return err
		}
		b.WriteByte('\n')
	}
	_, err := out.Write(b.Bytes())
	return err
}
