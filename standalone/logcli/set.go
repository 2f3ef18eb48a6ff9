package logcli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/logset"
)

// SetFlags are the flags of "rejoin log set": the limits of a log. The environment
// does not count, where the flags for a new log have the same names.
type SetFlags struct {
	MaxAge               flagtype.Duration `type:"limit" env:"-" help:"How long an event is retained; -1 for unlimited." placeholder:"DURATION"`
	MaxEventsPerStream   int64             `type:"limit" env:"-" help:"Events retained per stream; -1 for unlimited." placeholder:"N"`
	MaxBytes             flagtype.Bytes    `type:"limit" env:"-" help:"Maximum size of the whole log, in bytes or with a unit such as 64MB, 1GB or 256KiB; -1 for unlimited." placeholder:"BYTES"`
	MaxMessageBytes      flagtype.Bytes    `type:"positive" env:"-" help:"Maximum size of a message; max_payload of NATS must be 4096 bytes more." placeholder:"BYTES"`
	MaxEventsPerSession  int64             `type:"limit" env:"-" help:"Events retained per session; -1 for unlimited." placeholder:"N"`
	MaxBytesPerSession   flagtype.Bytes    `type:"limit" env:"-" help:"Bytes retained per session; -1 for unlimited." placeholder:"BYTES"`
	MaxStreamsPerSession int64             `type:"limit" env:"-" help:"Maximum number of open streams per session; -1 for unlimited." placeholder:"N"`
	Replicas             int               `type:"positive" env:"-" help:"Servers of the cluster that store each partition." placeholder:"N"`
	Yes                  bool              `env:"-" short:"y" help:"Do not ask for confirmation before events are deleted."`
}

// Help returns the additional text of --help.
func (SetFlags) Help() string {
	return `It prints the changes, and asks for confirmation before events are deleted.

  rejoin log set --max-age=2h
  rejoin log set --max-bytes=-1 --max-events-per-session=50000
  rejoin log set --max-age=10m --yes
  rejoin log set --replicas=3`
}

var (
	errNothingAsked = errors.New("nothing to set; use at least one of --max-age, --max-events-per-stream, --max-bytes, --max-message-bytes, --max-events-per-session, --max-bytes-per-session, --max-streams-per-session or --replicas")
	errNotAsked     = errors.New("nothing was changed: smaller limits delete events permanently, and there is no terminal to ask on; use --yes to confirm")
	errNo           = errors.New("nothing was changed")
)

// to returns the settings, changed by the given flags, of which none is 0.
func (f SetFlags) to(from eventlog.Settings) (eventlog.Settings, error) {
	if f == (SetFlags{Yes: f.Yes}) {
		return from, errNothingAsked
	}
	to := from
	to.MaxAge = cmp.Or(time.Duration(f.MaxAge), from.MaxAge)
	to.MaxEventsPerStream = cmp.Or(f.MaxEventsPerStream, from.MaxEventsPerStream)
	to.MaxBytes = cmp.Or(int64(f.MaxBytes), from.MaxBytes)
	to.MaxMessageBytes = cmp.Or(int(f.MaxMessageBytes), from.MaxMessageBytes)
	to.MaxEventsPerSession = cmp.Or(f.MaxEventsPerSession, from.MaxEventsPerSession)
	to.MaxBytesPerSession = cmp.Or(int64(f.MaxBytesPerSession), from.MaxBytesPerSession)
	to.MaxStreamsPerSession = cmp.Or(f.MaxStreamsPerSession, from.MaxStreamsPerSession)
	to.Replicas = cmp.Or(f.Replicas, from.Replicas)
	if to.MaxAge > 0 {
		to.MaxAge = to.MaxAge.Truncate(time.Millisecond) // as it is kept
	}
	return to, to.Validate()
}

// partitionWithin is how long the janitor may take for one partition: new replicas are waited for.
const partitionWithin = 5 * time.Minute

// set prints the changes, asks for confirmation if events will be deleted, and has the
// janitor apply them: its next sweep deletes the events. An error is one sentence for the
// user.
func set(ctx context.Context, l *eventlog.Log, flags SetFlags, out io.Writer, terminal io.Reader) error {
	all, err := states(ctx, l)
	if err != nil {
		return err
	}
	from := l.Settings()
	to, err := flags.to(from)
	if err != nil {
		return err
	}
	if to.MaxBytes != from.MaxBytes {
		if err := to.CheckSize(); err != nil {
			return err
		}
	}
	if payload := l.Conn().MaxPayload(); to.MaxMessageBytes > from.MaxMessageBytes && int64(to.MaxMessageBytes+eventlog.HeaderRoom) > payload {
		return fmt.Errorf("NATS takes messages of %d bytes; its max_payload must be at least %d first", payload, to.MaxMessageBytes+eventlog.HeaderRoom)
	}
	if from == to && behind(to, all) == 0 {
		_, err := fmt.Fprintln(out, "The log already has these settings.")
		return err
	}
	if err := plan(out, from, to, all); err != nil {
		return err
	}
	smaller := removes(from, to, all)
	if smaller && !flags.Yes {
		if err := ask(ctx, terminal, out, "Events beyond the smaller limits will be deleted permanently. Continue? [y/N] "); err != nil {
			return err
		}
	}
	if to.Replicas > from.Replicas && l.Clustered() {
		if _, err := fmt.Fprintf(out, "NATS copies %d partitions to their new servers, which may take minutes for each; all of them have to be up.\n", to.Partitions); err != nil {
			return err
		}
	}
	// From the last partition to the first: see eventlog.Log.SetLimits.
	for p := to.Partitions - 1; p >= 0; p-- {
		if err := setOne(ctx, l, logset.Request{Partition: p, From: from, To: to}); err != nil {
			return stopped(err, to.Partitions-1-p, to.Partitions)
		}
	}
	next := "."
	if smaller {
		next = "; the janitor's next sweep deletes the excess."
	}
	_, err = fmt.Fprintf(out, "All %d partitions are set%s\n", to.Partitions, next)
	return err
}

func setOne(ctx context.Context, l *eventlog.Log, req logset.Request) error {
	ctx, cancel := context.WithTimeout(ctx, partitionWithin)
	defer cancel()
	return logset.Ask(ctx, l.Conn(), req)
}

// stopped adds to an error how many partitions are set and what to do.
func stopped(err error, done, of int) error {
	far := "repeat the command to be sure that it is complete"
	if done > 0 {
		far = fmt.Sprintf("%d of %d partitions are set: repeat the command to set the rest", done, of)
	}
	switch {
	case strings.Contains(err.Error(), "err_code=10074"): // JSStreamReplicasNotSupportedErr, as the janitor prints it
		return errors.New("--replicas needs a NATS cluster, and this NATS server is in none")
	case strings.Contains(err.Error(), eventlog.ErrFull.Error()):
		return fmt.Errorf("%w; raise max_file_store of NATS or lower --max-bytes, and %s", err, far)
	case errors.Is(err, logset.ErrNobody):
		return fmt.Errorf("%w; start one, which applies the changes, or wait until one has taken over, and %s", err, far)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted; %s", far)
	default:
		return fmt.Errorf("%w; %s", err, far)
	}
}

// plan prints the changes.
func plan(out io.Writer, from, to eventlog.Settings, all []eventlog.State) error {
	var b strings.Builder
	for _, s := range settings {
		if was, will := s.value(from), s.value(to); was != will {
			fmt.Fprintf(&b, "%s: %s → %s\n", s.name, was, will)
		}
	}
	if n := behind(from, all); n > 0 {
		fmt.Fprintf(&b, "%d of %d partitions have other limits after an interrupted change; they get these as well.\n", n, len(all))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// removes reports whether events may be deleted: a limit gets smaller, that of the log,
// or of the bytes of a partition after a change that was cut off.
func removes(from, to eventlog.Settings, all []eventlog.State) bool {
	for _, s := range settings {
		if s.shrinks(from, to) {
			return true
		}
	}
	want := to.Limits()
	for _, st := range all {
		if eventlog.SmallerLimit(want.MaxBytes, st.Limits.MaxBytes) {
			return true
		}
	}
	return false
}

// ask returns nil when somebody answers yes at a terminal; a nil terminal is none.
func ask(ctx context.Context, terminal io.Reader, out io.Writer, text string) error {
	if terminal == nil {
		return errNotAsked
	}
	if _, err := io.WriteString(out, text); err != nil {
		return err
	}
	answers := make(chan string, 1)
	go func() { // nothing ends a read from a terminal but an answer, or the process' end
		answer, _ := bufio.NewReader(terminal).ReadString('\n') // the text before an error counts
		answers <- answer
	}()
	answer := ""
	select {
	case <-ctx.Done():
	case answer = <-answers:
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	if strings.HasSuffix(answer, "\n") {
		return errNo
	}
	_, _ = fmt.Fprintln(out) // the cursor is still in the line of the question
	if ctx.Err() != nil {
		return errNo
	}
	return errNotAsked
}
