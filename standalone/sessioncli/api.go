package sessioncli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"rejoin/shared/client"
	"rejoin/standalone/remote"
)

const (
	// answerWithin is how long an answer may take.
	answerWithin = 30 * time.Second
	// silence is how long a server may be silent until that is reported: longer than the second
	// that the janitor waits for edges when it does not know how many there are.
	silence = 2 * time.Second
	// pageSize is how many sessions a request asks for: the most that a response has.
	pageSize = 1000
	// maxAnswer bounds an answer, in bytes: a thousand sessions with 16 KiB of metadata, which escapes make six
	// times as long, and members.
	maxAnswer = 128 << 20
)

// api asks a Rejoin. An error is one sentence for the user.
type api struct {
	flags  remote.Flags
	base   string
	token  client.TokenFunc
	http   *http.Client
	status io.Writer // gets a line for a server that is silent
}

func newAPI(f remote.Flags, status io.Writer) (*api, error) {
	token, err := f.Token()
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true} // there are few requests
	return &api{
		flags: f, base: strings.TrimRight(f.URL, "/"), token: token, status: status,
		http: &http.Client{Transport: transport, Timeout: answerWithin, CheckRedirect: followReads},
	}, err
}

// followReads has net/http follow the redirects of reads alone: it would repeat a DELETE or POST as a GET.
func followReads(req *http.Request, via []*http.Request) error {
	if via[0].Method != http.MethodGet {
		return http.ErrUseLastResponse
	}
	return client.FollowRedirect(req, via)
}

// page is a part of the list of sessions.
type page struct {
	Sessions []json.RawMessage `json:"sessions"`
	Next     string            `json:"next"`
}

func (a *api) list(ctx context.Context, f ShowFlags, after string) (p page, err error) {
	query := url.Values{"limit": {fmt.Sprint(pageSize)}}
	for name, value := range map[string]string{"state": f.State, "sort": f.Sort, "after": after} {
		if value != "" {
			query.Set(name, value)
		}
	}
	body, err := a.do(ctx, http.MethodGet, "/v1/sessions?"+query.Encode(), nil)
	if err == nil {
		err = decode(body, &p, "sessions")
	}
	return p, err
}

// pathOf returns the path of a session.
func pathOf(name remote.Session) string { return "/v1/sessions/" + url.PathEscape(string(name)) }

// create creates a session, and prints its name.
func (a *api) create(ctx context.Context, f CreateFlags, out io.Writer) error {
	request, _ := json.Marshal(struct { // texts always can be written
		Session remote.Session `json:"session,omitempty"`
		Owner   string         `json:"owner,omitempty"`
		Members []string       `json:"members,omitempty"`
	}{f.Session, f.Owner, f.Members})
	body, err := a.do(ctx, http.MethodPost, "/v1/sessions", request)
	var created session
	if err == nil {
		err = decode(body, &created, "session")
	}
	if err == nil {
		_, err = fmt.Fprintln(out, plain(created.Session))
	}
	return err
}

// close closes a session or a stream, and prints which. A stream need not have had events.
func (a *api) close(ctx context.Context, f CloseFlags, out io.Writer) error {
	path, what := pathOf(f.Session), "session "+plain(string(f.Session))
	if f.Stream != "" {
		path += "/streams/" + url.PathEscape(string(f.Stream))
		what = "stream " + plain(string(f.Stream)) + " of " + what
	}
	if f.Clear {
		path += "?clear=true"
	}
	if _, err := a.do(ctx, http.MethodDelete, path, nil); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s is closed\n", what)
	return err
}

// do sends a request and returns the body of its answer.
func (a *api) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.token != nil {
		token, err := a.token(ctx)
		if err != nil {
			return nil, err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
	}
	quiet := time.AfterFunc(silence, func() {
		_, _ = fmt.Fprintf(a.status, "%s has not answered yet; waiting up to %s\n", a.flags.Shown(), answerWithin) // nowhere left to report to
	})
	defer quiet.Stop()
	resp, err := a.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, a.interrupted(method)
		}
		if untrusted := remote.Untrusted(err); untrusted != nil {
			return nil, untrusted
		}
		return nil, fmt.Errorf("%s does not answer (%w); start rejoin, or set its address with --url", a.flags.Shown(), remote.Plain(err))
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		if ctx.Err() != nil {
			return nil, a.interrupted(method)
		}
		return nil, err
	}
	if resp.StatusCode >= 300 {
		code, err := refusal(resp.StatusCode, answer)
		if resp.Request.Response != nil {
			err = fmt.Errorf("%w; the request was redirected to %s", err, resp.Request.URL.Redacted())
		}
		return nil, a.flags.Refused(err, resp.StatusCode, code)
	}
	if method == http.MethodDelete && resp.StatusCode != http.StatusNoContent { // a proxy's page for signing in
		return nil, fmt.Errorf("the response is not from Rejoin: %s", resp.Status)
	}
	return answer, nil
}

// interrupted returns the error of a request that an interruption has ended.
func (a *api) interrupted(method string) error {
	if method == http.MethodGet {
		return fmt.Errorf("interrupted: %s has not answered", a.flags.Shown())
	}
	return fmt.Errorf("interrupted: %s has not answered, and may have done it", a.flags.Shown())
}

// refusal returns the code of a problem document, and its text; no code for any other response.
func refusal(status int, body []byte) (code string, err error) {
	var problem struct{ Code, Title, Detail string }
	if json.Unmarshal(body, &problem) != nil || problem.Code == "" {
		return "", fmt.Errorf("the server responded with %d %s", status, http.StatusText(status))
	}
	return problem.Code, fmt.Errorf("%s (%d %s)", plain(cmp.Or(problem.Detail, problem.Title)), status, plain(problem.Code))
}

// decode reads an object of Rejoin, which has the given field: other servers answer with JSON as well.
func decode(body []byte, into any, field string) error {
	var fields map[string]json.RawMessage
	err := json.Unmarshal(body, &fields)
	if err == nil && fields[field] == nil {
		err = fmt.Errorf("it has no %q", field)
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return fmt.Errorf("the response is not from Rejoin: %w", err)
	}
	return nil
}

// session is a row of the table.
type session struct {
	Session  string    `json:"session"`
	State    string    `json:"state"`
	Streams  int       `json:"streams"`
	Events   int       `json:"events"`
	Bytes    int64     `json:"bytes"`
	Activity time.Time `json:"activity"`
}

// ShowFlags are those of "rejoin sessions show".
type ShowFlags struct {
	Session remote.Session `arg:"" optional:"" help:"The session; without one, list all."`
	State   string         `env:"-" enum:",open,closed" default:"" help:"List only open or only closed sessions." placeholder:"STATE"`
	Sort    string         `env:"-" enum:",bytes,events,activity" default:"" help:"Order of the list: bytes, events or activity, the largest or latest first; by default by name." placeholder:"ORDER"`
	JSON    bool           `name:"json" env:"-" help:"Print one JSON object per line for each session."`
}

// Validate returns an error for flags of the list beside a session.
func (f ShowFlags) Validate() error {
	if f.Session != "" && f.State+f.Sort != "" {
		return errors.New("--state and --sort are for the list of all sessions; leave them out, or the session")
	}
	return nil
}

// Help returns the additional text of --help.
func (ShowFlags) Help() string {
	return `Last activity is the time of the newest event, or when the session was created or closed.

  rejoin sessions
  rejoin sessions demo
  rejoin sessions --sort=activity
  rejoin sessions --state=closed --json`
}

// CreateFlags are those of "rejoin sessions create".
type CreateFlags struct {
	Session remote.Session `arg:"" optional:"" help:"The session's name; without one, the server chooses it."`
	Owner   string         `env:"-" help:"Owner of the session; for a token whose owners include that subject." placeholder:"SUBJECT"`
	Members []string       `env:"-" help:"Other users of the session, as far as their tokens permit: subjects, prefixes followed by *, or * for all." placeholder:"SUBJECT"`
}

// Help returns the additional text of --help.
func (CreateFlags) Help() string {
	return `Without access control, the first message also creates its session.

  rejoin sessions create demo
  session=$(rejoin sessions create)
  rejoin sessions create --owner=alice --members=bob,carol`
}

// CloseFlags are those of "rejoin sessions close".
type CloseFlags struct {
	Session remote.Session `arg:"" help:"The session."`
	Stream  remote.Stream  `arg:"" optional:"" help:"The stream; without one, close the whole session."`
	Clear   bool           `env:"-" help:"Also delete the stored events."`
}

// Help returns the additional text of --help.
func (CloseFlags) Help() string {
	return `Connected clients receive a close event. A stream that never had events is closed as well.
The name cannot be reused for 24 h (--tombstone-ttl).

  rejoin sessions close demo
  rejoin sessions close demo main
  rejoin sessions close demo --clear`
}
