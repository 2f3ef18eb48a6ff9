package logcli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
)

// ShowFlags are the flags of "rejoin log show".
type ShowFlags struct {
	JSON bool `name:"json" env:"-" help:"Print JSON."`
}

// Help returns the additional text of --help.
func (ShowFlags) Help() string {
	return `A partition begins a new generation when its NATS server restarts.

  rejoin log show
  rejoin log show --json | jq .settings`
}

// setting is a setting as it is shown; the flag that sets it has the same name.
type setting struct {
	name  string
	get   func(eventlog.Settings) int64
	text  func(int64) string
	limit bool // a smaller value deletes events
}

func (f setting) value(s eventlog.Settings) string {
	if n := f.get(s); n >= 0 {
		return f.text(n)
	}
	return "no limit"
}

func (f setting) shrinks(from, to eventlog.Settings) bool {
	return f.limit && eventlog.SmallerLimit(f.get(to), f.get(from))
}

// settings are all of them, in the order in which they are shown.
var settings = []setting{
	{"partitions", func(s eventlog.Settings) int64 { return int64(s.Partitions) }, countText, false},
	{"replicas", func(s eventlog.Settings) int64 { return int64(s.Replicas) }, countText, false},
	{"max-age", func(s eventlog.Settings) int64 { return int64(s.MaxAge) }, ageText, true},
	{"max-events-per-stream", func(s eventlog.Settings) int64 { return s.MaxEventsPerStream }, countText, true},
	{"max-bytes", func(s eventlog.Settings) int64 { return s.MaxBytes }, flagtype.FormatBytes, true},
	{"max-message-bytes", func(s eventlog.Settings) int64 { return int64(s.MaxMessageBytes) }, flagtype.FormatBytes, false},
	{"max-events-per-session", func(s eventlog.Settings) int64 { return s.MaxEventsPerSession }, countText, true},
	{"max-bytes-per-session", func(s eventlog.Settings) int64 { return s.MaxBytesPerSession }, flagtype.FormatBytes, true},
	{"max-streams-per-session", func(s eventlog.Settings) int64 { return s.MaxStreamsPerSession }, countText, true},
	{"compression", func(s eventlog.Settings) int64 { return map[bool]int64{true: 1}[s.Compression] }, yesText, false},
}

func yesText(n int64) string {
	if n == 0 {
		return "no"
	}
	return "yes"
}

func countText(n int64) string { return strconv.FormatInt(n, 10) }

func ageText(n int64) string { return flagtype.FormatDuration(time.Duration(n)) }

// shownLog is the output of --json. -1 is no limit.
type shownLog struct {
	Settings   shownSettings    `json:"settings"`
	Partitions []shownPartition `json:"partitions"`
}

type shownSettings struct {
	Partitions           int   `json:"partitions"`
	Replicas             int   `json:"replicas"`
	MaxAgeMilliseconds   int64 `json:"maxAgeMilliseconds"`
	MaxEventsPerStream   int64 `json:"maxEventsPerStream"`
	MaxBytes             int64 `json:"maxBytes"`
	MaxMessageBytes      int   `json:"maxMessageBytes"`
	MaxEventsPerSession  int64 `json:"maxEventsPerSession"`
	MaxBytesPerSession   int64 `json:"maxBytesPerSession"`
	MaxStreamsPerSession int64 `json:"maxStreamsPerSession"`
	Compression          bool  `json:"compression"`
}

type shownPartition struct {
	Partition   int    `json:"partition"`
	First       uint64 `json:"first"`
	Last        uint64 `json:"last"`
	Entries     uint64 `json:"entries"`
	Bytes       uint64 `json:"bytes"`
	Generations int    `json:"generations"`
	// Replicas is how many servers hold the partition, and Current how many have all of it.
	Replicas int `json:"replicas"`
	Current  int `json:"replicasCurrent"`
	// Limits is false when a change of the limits did not get to this partition.
	Limits bool `json:"limitsAsSet"`
}

func milliseconds(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

// states looks at all partitions.
func states(ctx context.Context, l *eventlog.Log) ([]eventlog.State, error) {
	all := make([]eventlog.State, l.Settings().Partitions)
	for p := range all {
		var err error
		if all[p], err = l.Look(ctx, p); err != nil {
			return nil, fmt.Errorf("partition %d: %w", p, err)
		}
	}
	return all, nil
}

func show(ctx context.Context, l *eventlog.Log, flags ShowFlags, out io.Writer) error {
	all, err := states(ctx, l)
	if err != nil {
		return err
	}
	s := l.Settings()
	if flags.JSON {
		return showJSON(s, all, out)
	}
	var b bytes.Buffer
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, f := range settings {
		_, _ = fmt.Fprintf(table, "%s\t%s\n", f.name, f.value(s)) // a buffer takes all
	}
	_ = table.Flush()
	b.WriteByte('\n')
	table = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "partition\tgenerations\tfirst\tlast\tentries\tbytes\t")
	var entries, size uint64
	for p, st := range all {
		_, _ = fmt.Fprintf(table, "%d\t%d\t%d\t%d\t%d\t%d\t\n", p, len(st.Generations), st.First, st.Last, st.Entries, st.Bytes)
		entries, size = entries+st.Entries, size+st.Bytes
	}
	_, _ = fmt.Fprintf(table, "all\t\t\t\t%d\t%d\t\n", entries, size)
	_ = table.Flush()
	if s.Replicas > 1 {
		_, _ = fmt.Fprintf(&b, "\n%d of %d partitions have all their replicas current.\n", whole(all), len(all))
	}
	if n := behind(s, all); n > 0 {
		_, _ = fmt.Fprintf(&b, "\n%d of %d partitions have other limits after an interrupted change; rejoin log set completes it.\n", n, len(all))
	}
	_, err = out.Write(b.Bytes())
	return err
}

func showJSON(s eventlog.Settings, all []eventlog.State, out io.Writer) error {
	shown := shownLog{Settings: shownSettings{
		Partitions: s.Partitions, Replicas: s.Replicas, MaxAgeMilliseconds: milliseconds(s.MaxAge),
		MaxEventsPerStream: s.MaxEventsPerStream, MaxBytes: s.MaxBytes, MaxMessageBytes: s.MaxMessageBytes,
		MaxEventsPerSession: s.MaxEventsPerSession, MaxBytesPerSession: s.MaxBytesPerSession,
		MaxStreamsPerSession: s.MaxStreamsPerSession, Compression: s.Compression,
	}}
	for p, st := range all {
		shown.Partitions = append(shown.Partitions, shownPartition{
			Partition: p, First: st.First, Last: st.Last, Entries: st.Entries, Bytes: st.Bytes,
			Generations: len(st.Generations), Replicas: st.Limits.Replicas, Current: st.Current, Limits: st.Limits == s.Limits(),
		})
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(shown)
}

// whole counts the partitions whose replicas are all current.
func whole(all []eventlog.State) (n int) {
	for _, st := range all {
		if st.Current == st.Limits.Replicas {
			n++
		}
	}
	return n
}

// behind counts the partitions that have other limits than the log's settings.
func behind(s eventlog.Settings, all []eventlog.State) (n int) {
	for _, st := range all {
		if st.Limits != s.Limits() {
			n++
		}
	}
	return n
}
