package streamcli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"rejoin/shared/client"
	"rejoin/shared/daemon"
	"rejoin/standalone/remote"
)

// silence is how long a server may be silent until that is reported.
const silence = time.Second

// report prints on standard error whether the server answers. It is safe for concurrent use.
type report struct {
	status io.Writer
	url    string

	mu       sync.Mutex
	first    sync.Once
	timer    *time.Timer
	answered bool // at least once, if only with a refusal
	down     bool // the last attempt failed
}

func newReport(status io.Writer, url string) *report {
	r := &report{status: status, url: url}
	r.timer = time.AfterFunc(silence, func() { r.failed(errors.New("no answer yet")) })
	r.timer.Stop()
	return r
}

// asked is called when a request is sent. A server that does not answer the first one within a second is
// reported, unless stop is called before.
func (r *report) asked() { r.first.Do(func() { r.timer.Reset(silence) }) }

func (r *report) stop() { r.timer.Stop() }

// failed is called with the reason when an attempt fails: there was no response, or a refusal. Only the first
// one since the last answer is printed.
func (r *report) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer.Stop()
	refused, ok := errors.AsType[*client.Error](err)
	if ok && (refused.Code == client.CodeStreamClosed || refused.Code == client.CodeSessionClosed) {
		return // the repeat is refused, which is reported for each line
	}
	text := fmt.Sprintf("%s does not answer (%v); trying again until it does", r.url, remote.Plain(err))
	if untrusted := remote.Untrusted(err); untrusted != nil {
		text = fmt.Sprintf("%s: %v; trying again", r.url, untrusted)
	}
	if ok {
		r.answered = true
		text = fmt.Sprintf("%s: %s; trying again", r.url, strings.TrimSuffix(refused.Error(), "."))
	}
	if !r.down {
		r.say("%s", red(r.status, text))
	}
	r.down = true
}

// answers is called when the server answers.
func (r *report) answers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer.Stop()
	if r.down {
		r.say("%s answers", r.url)
	}
	r.answered, r.down = true, false
}

// hasAnswered reports whether the server ever has.
func (r *report) hasAnswered() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answered
}

func (r *report) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.status, format+"\n", args...) // nowhere left to report to
}

// coloured reports whether the output to a stream may have colours (no-color.org).
func coloured(stream any) bool {
	return daemon.IsTerminal(stream) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// red returns text in red, if the stream that it is for has colours.
func red(stream io.Writer, text string) string {
	if coloured(stream) {
		return "\x1b[31m" + text + "\x1b[0m"
	}
	return text
}
