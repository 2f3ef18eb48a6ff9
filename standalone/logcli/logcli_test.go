package logcli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"rejoin/services/janitor"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/leaktest"
	"rejoin/shared/logset"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

func TestMain(m *testing.M) {
	os.Exit(leaktest.Run(m, append(webtest.IgnoreFasthttp(), natstest.IgnoreLeaks()...)...))
}

// system is a log with a janitor.
type system struct {
	t   *testing.T
	url string
	b   *backend.Backend
}

func begin(t *testing.T, settings eventlog.Settings) *system {
	t.Helper()
	return beginAt(t, natstest.Start(t).URL(), settings)
}

// beginAt is begin on servers that run already.
func beginAt(t *testing.T, natsURL string, settings eventlog.Settings) *system {
	t.Helper()
	env := daemon.NewEnv(nil)
	b := must.Value(backend.Create(t.Context(), backend.Config{NATSURL: natsURL}, "janitor", settings, env.Log))(t)
	j := must.Value(janitor.New(janitor.Config{Interval: 50 * time.Millisecond, Lease: 15 * time.Second, ClosedGrace: time.Hour, TombstoneTTL: time.Hour}, b, env))(t)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		b.Close()
	})
	s := &system{t, natsURL, b}
	waittest.Until(t, "the janitor is there", func() bool { return env.Health.Readiness().Ready })
	other := b.Log.Settings()
	other.MaxAge++
	for p := range other.Partitions {
		waittest.Until(t, "it changes limits", func() bool { // but not these
			err := logset.Ask(t.Context(), b.Conn, logset.Request{Partition: p, From: other, To: other})
			return errors.Is(err, logset.ErrRefused)
		})
	}
	return s
}

// run runs a command and returns its exit code and its output. Its standard input is a
// file, not a terminal.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	stdin := must.Value(os.Create(filepath.Join(t.TempDir(), "stdin")))(t)
	defer func() { _ = stdin.Close() }()
	var cli CLI
	var out, errs bytes.Buffer
	a := app(&cli, args, stdin)
	a.Stdout, a.Stderr = &out, &errs
	return a.Main(), out.String(), errs.String()
}

func (s *system) want(code int, out, sentence string, args ...string) {
	s.t.Helper()
	gotCode, gotOut, gotErr := run(s.t, append(args, "--nats-url="+s.url)...)
	if sentence != "" {
		sentence = "rejoin log: " + sentence + "\n"
	}
	if gotCode != code || gotOut != out || gotErr != sentence {
		s.t.Errorf("%v: exit code %d and\n%q\n%q, want %d and\n%q\n%q", args, gotCode, gotOut, gotErr, code, out, sentence)
	}
}

func (s *system) publish(session string, n int) {
	s.t.Helper()
	for range n {
		must.Value(s.b.Log.Publish(s.t.Context(), eventlog.Event{Session: session, Stream: "t", Data: []byte(`{"jsonrpc":"2.0","method":"n"}`)}))(s.t)
	}
}

// swept is the end of the output when limits get smaller.
const swept = "; the janitor's next sweep deletes the excess.\n"

// trimmed waits until the janitor has removed all but so many entries of a partition.
func (s *system) trimmed(p int, entries uint64) (state eventlog.State) {
	s.t.Helper()
	waittest.Until(s.t, "the janitor has removed what is too much", func() bool {
		var err error
		state, err = s.b.Log.Look(s.t.Context(), p)
		must.NoError(s.t, err)
		return state.Entries == entries
	})
	return state
}

func TestLimits_ShowAndChange(t *testing.T) {
	t.Setenv("REJOIN_MAX_EVENTS_PER_STREAM", "3") // for a new log, and not for this
	s := begin(t, eventlog.Settings{Partitions: 2, MaxAge: 90 * time.Minute, Compression: true})
	s.publish("s", 4)
	s.want(0, "max-age: 1h30m → 2h\nmax-events-per-session: 10000 → no limit\nmax-streams-per-session: 100 → 200\nAll 2 partitions are set.\n", "",
		"set", "--max-age=2h", "--max-events-per-session=-1", "--max-streams-per-session=200")
	s.want(0, "The log already has these settings.\n", "", "set", "--max-age=120m")
	s.want(0, "max-message-bytes: 8388608 (8.0 MiB) → 4194304 (4.0 MiB)\nAll 2 partitions are set.\n", "", "set", "--max-message-bytes=4194304")
	s.want(0, "max-message-bytes: 4194304 (4.0 MiB) → 8388608 (8.0 MiB)\nAll 2 partitions are set.\n", "", "set", "--max-message-bytes=8388608")
	s.want(1, "", "NATS takes messages of 8392704 bytes; its max_payload must be at least 16781312 first", "set", "--max-message-bytes=16777216")
	s.want(0, "max-events-per-stream: 10000 → 1\nmax-bytes: 8589934592 (8.0 GiB) → 1048576 (1.0 MiB)\nmax-streams-per-session: 200 → 5\nAll 2 partitions are set"+swept, "",
		"set", "--max-events-per-stream=1", "--max-bytes=1048576", "--max-streams-per-session=5", "--yes")
	if got := s.b.Log.Settings(); got.MaxAge != 2*time.Hour || got.MaxEventsPerStream != 1 || got.MaxEventsPerSession != -1 {
		t.Errorf("the settings are %+v", got)
	}
	p := s.b.Log.Partition("s")
	state := s.trimmed(p, 2) // the newest event, and the trim that announced the removed ones
	if state.First != 4 {
		t.Errorf("%+v", state)
	}
	rows := [2]string{"0            1      1     0        0      0\n", "1            1      1     0        0      0\n"}
	rows[p] = fmt.Sprintf("%d            1      4     5        2  %5d\n", p, state.Bytes)
	s.want(0, `partitions               2
replicas                 1
max-age                  2h
max-events-per-stream    1
max-bytes                1048576 (1.0 MiB)
max-message-bytes        8388608 (8.0 MiB)
max-events-per-session   no limit
max-bytes-per-session    33554432 (32.0 MiB)
max-streams-per-session  5
compression              yes

  partition  generations  first  last  entries  bytes
          `+rows[0]+"          "+rows[1]+fmt.Sprintf("        all                                  2  %5d\n", state.Bytes), "", "show")
	_, out, _ := run(t, "show", "--json", "--nats-url="+s.url)
	var shown shownLog
	must.NoError(t, json.Unmarshal([]byte(out), &shown))
	if want := (shownPartition{p, 4, 5, 2, state.Bytes, 1, 1, 1, true}); shown.Settings.MaxAgeMilliseconds != 7_200_000 || shown.Partitions[p] != want {
		t.Errorf("as JSON: %s", out)
	}
}

func TestLimits_RemovalNeedsConfirmation(t *testing.T) {
	t.Parallel()
	s := begin(t, eventlog.Settings{Partitions: 1})
	s.publish("s", 3)
	try := func(terminal io.Reader) (string, error) {
		t.Helper()
		var out bytes.Buffer
		err := set(t.Context(), s.b.Log, SetFlags{MaxEventsPerStream: 2}, &out, terminal)
		return out.String(), err
	}
	for answer, want := range map[string]error{"": errNotAsked, "\n": errNo, "n\n": errNo, "yesterday\n": errNo} {
		if out, err := try(strings.NewReader(answer)); err != want || !strings.HasPrefix(out, "max-events-per-stream: 10000 → 2\nEvents beyond") { //nolint:errorlint // exactly this
			t.Errorf("answered %q: %q, %v", answer, out, err)
		}
	}
	s.want(1, "max-events-per-stream: 10000 → 2\n", errNotAsked.Error(), "set", "--max-events-per-stream=2")
	if state, err := s.b.Log.Look(t.Context(), 0); err != nil || state.Entries != 3 {
		t.Errorf("%+v, %v", state, err)
	}
	if out, err := try(strings.NewReader("Y\n")); err != nil || !strings.HasSuffix(out, "[y/N] All 1 partitions are set"+swept) {
		t.Errorf("answered yes: %q, %v", out, err)
	}
	s.trimmed(0, 3)
}

func TestLimits_InterruptedChange(t *testing.T) {
	t.Parallel()
	s := begin(t, eventlog.Settings{Partitions: 3, MaxBytes: 3_000_000})
	cutOff := func(limit int64) {
		from := s.b.Log.Settings()
		to := from
		to.MaxBytes = limit
		waittest.Until(t, "somebody changes partition 2", func() bool {
			err := logset.Ask(t.Context(), s.b.Conn, logset.Request{Partition: 2, From: from, To: to})
			if err != nil && !errors.Is(err, logset.ErrNobody) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	const others = "1 of 3 partitions have other limits after an interrupted change; they get these as well.\n"
	const three, six = "3000000 (2.9 MiB)", "6000000 (5.7 MiB)"
	cutOff(6_000_000)
	_, out, _ := run(t, "show", "--nats-url="+s.url)
	if !strings.Contains(out, "max-bytes                "+three+"\n") || !strings.HasSuffix(out, "\n1 of 3 partitions have other limits after an interrupted change; rejoin log set completes it.\n") {
		t.Errorf("it shows\n%s", out)
	}
	s.want(0, "max-bytes: "+three+" → "+six+"\n"+others+"All 3 partitions are set.\n", "", "set", "--max-bytes=6000000")

	cutOff(3_000_000)
	s.want(1, "max-bytes: "+six+" → "+three+"\n"+others, errNotAsked.Error(), "set", "--max-bytes=3000000")
	s.want(0, "max-bytes: "+six+" → "+three+"\n"+others+"All 3 partitions are set"+swept, "", "set", "--max-bytes=3000000", "--yes")
	cutOff(4_000_000)
	s.want(1, others, errNotAsked.Error(), "set", "--max-bytes=3000000") // the earlier limit removes the events stored meanwhile
	s.want(0, others+"All 3 partitions are set"+swept, "", "set", "--max-bytes=3000000", "-y")
}

func TestErrors_OneSentence(t *testing.T) {
	t.Parallel()
	s := begin(t, eventlog.Settings{Partitions: 1})
	const help = "; see rejoin log --help"
	s.want(2, "", errNothingAsked.Error()+help, "set", "--yes")
	s.want(2, "", "--max-bytes: must be positive, or -1 for no limit"+help, "set", "--max-bytes=0")
	s.want(2, "", "--max-age: must be positive, or -1 for no limit"+help, "set", "--max-age=0s")
	s.want(2, "", "invalid log settings: the maximum age must be at least 100ms, or -1 for none"+help, "set", "--max-age=1ms")
	s.want(1, "", "invalid log settings: --max-bytes must be at least 65536, 64 KiB for each partition, not 20", "set", "--max-bytes=20")
	s.want(1, "replicas: 1 → 3\n", "--replicas needs a NATS cluster, and this NATS server is in none", "set", "--replicas=3")
	s.want(2, "", "invalid log settings: a limit must be positive, or -1 for none"+help, "set", "--max-bytes-per-session=-2")
	s.want(2, "", `--max-age: "soon" is not a duration (examples: 90m, 24h, 7d; -1 for unlimited); see rejoin log --help`, "set", "--max-age=soon")
	for name, url := range map[string]string{"no server": "nats://user:secret@127.0.0.1:1", "no log": natstest.Start(t).URL()} {
		code, _, stderr := run(t, "show", "--nats-url="+url)
		if code != 1 || strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "secret") {
			t.Errorf("%s: %d, %q", name, code, stderr)
		}
	}

	// NATS reserves the bytes of each partition.
	small := natstest.StartConfig(t, os.DevNull, func(o *server.Options) { o.JetStream, o.JetStreamMaxStore = true, 4<<30 })
	beginAt(t, small.URL(), eventlog.Settings{Partitions: 2, MaxBytes: 512 << 20})
	const advice = "; raise max_file_store of NATS or lower --max-bytes, and 1 of 2 partitions are set: repeat the command to set the rest\n"
	if code, _, stderr := run(t, "set", "--max-bytes=4GiB", "--nats-url="+small.URL()); code != 1 || !strings.HasSuffix(stderr, advice) {
		t.Errorf("without storage: %d, %q", code, stderr)
	}

	// A log without a janitor.
	srv := natstest.Start(t)
	b := must.Value(backend.Create(t.Context(), backend.Config{NATSURL: srv.URL()}, "t", eventlog.Settings{Partitions: 2}, daemon.NewEnv(nil).Log))(t)
	defer b.Close()
	alone := &system{t, srv.URL(), b}
	alone.want(1, "max-age: 1h → 2h\n", "no janitor answers; start one, which applies the changes, or wait until one has taken over, and repeat the command to be sure that it is complete", "set", "--max-age=2h")

	// Another change was faster.
	must.Value(b.Conn.Subscribe(logset.Subject(1), func(m *nats.Msg) { _ = m.Respond([]byte("{}")) }))(t)
	must.Value(b.Conn.Subscribe(logset.Subject(0), func(m *nats.Msg) { _ = m.Respond([]byte(`{"error":"the settings have changed meanwhile"}`)) }))(t)
	must.NoError(t, b.Conn.Flush())
	alone.want(1, "max-age: 1h → 2h\n", "the janitor says: the settings have changed meanwhile; 1 of 2 partitions are set: repeat the command to set the rest", "set", "--max-age=2h")
}

// NATS answers nothing, so the user interrupts the command.
func TestErrors_Interrupted(t *testing.T) {
	srv := natstest.StartConfig(t, os.DevNull) // without JetStream
	for _, args := range [][]string{{"show"}, {"set", "--max-age=2h"}} {
		a := app(new(CLI), append(args, "--nats-url="+srv.URL()), os.Stdin)
		var out, errs bytes.Buffer
		signals := make(chan os.Signal, 1)
		a.Stdout, a.Stderr, a.Signals = &out, &errs, signals
		asked := must.Value(srv.Connect().Subscribe("$JS.API.>", func(*nats.Msg) { signals <- os.Interrupt }))(t)
		must.NoError(t, asked.AutoUnsubscribe(1))
		if code := a.Main(); code != 1 || out.Len() > 0 || errs.String() != "rejoin log: interrupted\n" {
			t.Errorf("%s: %d %q %q", args, code, &out, &errs)
		}
	}
}

func TestErrors_ShowNoSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"nats://127.0.0.1:4222":              "nats://127.0.0.1:4222",
		"nats://u:p@a:1,tls://token@b:2,c:3": "nats://a:1,tls://b:2,c:3",
	} {
		if got := withoutSecrets(in); got != want {
			t.Errorf("%q becomes %q", in, got)
		}
	}
}
