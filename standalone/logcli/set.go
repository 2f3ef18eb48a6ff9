package logcli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"rejoin/services/janitor"
	"rejoin/shared/eventlog"
	"rejoin/shared/logset"
)

// SetFlags are the flags of "rejoin log set": the limits of a log. The environment
// does not count, where the flags for a new log have the same names.
type SetFlags struct {
	MaxAge               *janitor.Age `env:"-" help:"How long an event is retained; -1 for ever." placeholder:"DURATION"`
	MaxEventsPerStream   *int64       `env:"-" help:"Events of one stream that are retained; -1 for all." placeholder:"N"`
	MaxBytes             *int64       `env:"-" help:"Bytes that the whole log may hold; -1 for any number." placeholder:"BYTES"`
	MaxEventsPerSession  *int64       `env:"-" help:"Events of one session that are retained; -1 for all." placeholder:"N"`
	MaxBytesPerSession   *int64       `env:"-" help:"Bytes of one session that are retained; -1 for any number." placeholder:"BYTES"`
	MaxStreamsPerSession *int64       `env:"-" help:"Open streams of one session; -1 for any number." placeholder:"N"`
	Replicas             *int         `env:"-" help:"Servers of the cluster that hold each partition." placeholder:"N"`
	Yes                  bool         `env:"-" short:"y" help:"Do not ask before events are removed."`
}

// Help is what --help says besides.
func (SetFlags) Help() string {
	return `It says what will change, and asks before events are removed.

  rejoin log set --max-age=2h
  rejoin log set --max-bytes=-1 --max-events-per-session=50000
  rejoin log set --max-age=10m --yes
  rejoin log set --replicas=3`
}

var (
	errNothingAsked = errors.New("nothing to set; give one of --max-age, --max-events-per-stream, --max-bytes, --max-events-per-session, --max-bytes-per-session, --max-streams-per-session and --replicas")
	errNotAsked     = errors.New("nothing was changed: smaller limits remove events for good, and there is no terminal to ask on; give --yes to remove them")
	errNo           = errors.New("nothing was changed")
)

// to returns the settings with those that were given.
func (f SetFlags) to(from eventlog.Settings) (eventlog.Settings, error) {
	to, given := from, false
	limit := func(flag string, value, at *int64) error {
		if value == nil {
			return nil
		}
		given = true
		if *value == 0 {
			return fmt.Errorf("--%s must be positive, or -1 for no limit", flag)
		}
		*at = *value
		return nil
	}
	if f.MaxAge != nil {
		given = true
		if to.MaxAge = time.Duration(*f.MaxAge); to.MaxAge == 0 {
			return to, errors.New("--max-age must be positive, or -1 for no limit")
		}
		if to.MaxAge > 0 {
			to.MaxAge = to.MaxAge.Truncate(time.Millisecond) // as it is kept
		}
	}
	if f.Replicas != nil {
		given = true
		if to.Replicas = *f.Replicas; to.Replicas < 1 {
			return to, errors.New("--replicas must be at least 1")
		}
	}
	err := errors.Join(
		limit("max-events-per-stream", f.MaxEventsPerStream, &to.MaxEventsPerStream),
		limit("max-bytes", f.MaxBytes, &to.MaxBytes),
		limit("max-events-per-session", f.MaxEventsPerSession, &to.MaxEventsPerSession),
		limit("max-bytes-per-session", f.MaxBytesPerSession, &to.MaxBytesPerSession),
		limit("max-streams-per-session", f.MaxStreamsPerSession, &to.MaxStreamsPerSession),
	)
	if err == nil && !given {
		err = errNothingAsked
	}
	if err == nil {
		err = to.Validate()
	}
	return to, err
}

// partitionWithin is how long the janitor may take for one partition: new replicas are waited for.
const partitionWithin = 5 * time.Minute

// set says what will change, asks if events go, and has the janitor do it: it removes them
// with its next sweep. An error is one sentence for the user.
func set(ctx context.Context, l *eventlog.Log, flags SetFlags, out io.Writer, q question) error {
	all, err := states(ctx, l)
	if err != nil {
		return err
	}
	from := l.Settings()
	to, err := flags.to(from)
	if err != nil {
		return err
	}
	if from == to && behind(to, all) == 0 {
		_, err := fmt.Fprintln(out, "The log has these settings; there is nothing to change.")
		return err
	}
	if err := plan(out, from, to, all); err != nil {
		return err
	}
	smaller := removes(from, to, all)
	if smaller && !flags.Yes {
		if err := q.ask(ctx, out, "Events that the smaller limits do not allow are removed for good. Go on? [y/N] "); err != nil {
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
		next = "; the janitor's next sweep removes what is too much."
	}
	_, err = fmt.Fprintf(out, "All %d partitions are set%s\n", to.Partitions, next)
	return err
}

func setOne(ctx context.Context, l *eventlog.Log, req logset.Request) error {
	ctx, cancel := context.WithTimeout(ctx, partitionWithin)
	defer cancel()
	return logset.Ask(ctx, l.Conn(), req)
}

// stopped says how far it went and what to do.
func stopped(err error, done, of int) error {
	far := "repeat it to be sure that it is done"
	if done > 0 {
		far = fmt.Sprintf("%d of %d partitions are set, and the log's settings are as before: repeat it to do the rest", done, of)
	}
	switch {
	case errors.Is(err, logset.ErrNobody):
		return fmt.Errorf("%w, which is what changes a log; start one, and %s", err, far)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted; %s", far) // no wrapping: it is an error, unlike the end of a service
	default:
		return fmt.Errorf("%w; %s", err, far)
	}
}

// plan says what will change.
func plan(out io.Writer, from, to eventlog.Settings, all []eventlog.State) error {
	var b strings.Builder
	for _, s := range settings() {
		if was, will := s.value(from), s.value(to); was != will {
			fmt.Fprintf(&b, "%s: %s → %s\n", s.name, was, will)
		}
	}
	if n := behind(from, all); n > 0 {
		fmt.Fprintf(&b, "%d of %d partitions have other limits, since a change was cut off; they get these as well.\n", n, len(all))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// removes reports whether events may go: a limit gets smaller, that of the log, or of the
// bytes of a partition after a change that was cut off.
func removes(from, to eventlog.Settings, all []eventlog.State) bool {
	for _, s := range settings() {
		if s.shrinks != nil && s.shrinks(from, to) {
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

// ask returns nil when somebody says yes.
func (q question) ask(ctx context.Context, out io.Writer, text string) error {
	if !q.terminal {
		return errNotAsked
	}
	if _, err := io.WriteString(out, text); err != nil {
		return err
	}
	answers := make(chan string, 1)
	go func() { // nothing ends a read from a terminal but an answer, or the process' end
		answer, _ := bufio.NewReader(q.in).ReadString('\n') // what was read counts
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
	_, _ = fmt.Fprintln(out) // the cursor stands behind the question
	if ctx.Err() != nil {
		return errNo
	}
	return errNotAsked
}
