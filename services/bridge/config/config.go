// Package config has the flags of a bridge.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/mattn/go-shellwords"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/flagtype"
	"rejoin/shared/session"
)

// Config configures the service. Each field is a flag of the programs that run it.
type Config struct {
	// Upstream is the URL of the MCP server's Streamable HTTP endpoint.
	Upstream string `help:"URL of the MCP server's Streamable HTTP endpoint." placeholder:"URL"`

	// UpstreamCommand starts an MCP server that speaks stdio: a program and its
	// arguments, quoted as in a shell. Each session has a process of its own. It excludes
	// Upstream.
	UpstreamCommand string `help:"Command that starts an MCP server speaking stdio, with its arguments, quoted as in a shell; each session gets its own process." placeholder:"COMMAND"`

	// UpstreamEnv are the names of the variables of the bridge's environment that a process
	// of UpstreamCommand gets, besides PATH, HOME, LANG, LC_*, TZ and TMPDIR. Default: none.
	UpstreamEnv []string `help:"Environment variables passed to the process of --upstream-command, in addition to PATH, HOME, LANG, LC_*, TZ and TMPDIR." placeholder:"NAME"`

	// UpstreamUser is the user that a process of UpstreamCommand runs as, by name or as
	// UID, with :GID for a group that is not the user's own: in no other group, and with
	// that user's home folder. The bridge must be root or have CAP_SETUID, CAP_SETGID and
	// CAP_KILL. Default: the bridge's own user.
	UpstreamUser string `help:"User that runs the process of --upstream-command, by name or as UID[:GID]; the bridge must be root, or have CAP_SETUID, CAP_SETGID and CAP_KILL (default: the bridge's own)." placeholder:"USER"`

	// MaxProcesses is how many processes of UpstreamCommand may run at once; more
	// sessions are answered 503. While more than three quarters of them run, a client with
	// more than a quarter gets no new one. Default: 100.
	MaxProcesses int `default:"100" help:"Maximum number of processes of --upstream-command; while more than three quarters are in use, no client gets more than a quarter." placeholder:"N"`

	// ProcessIdleAfter is how long a session with a process may be without events, subscribers
	// and requests before the janitor closes it, which ends the process. 0 and -1: as long as any
	// other session. Default: 10 min.
	ProcessIdleAfter flagtype.Duration `default:"10m" help:"How long a session with a process of --upstream-command may have no events, subscribers or requests before it is closed; 0 or -1 for as long as any other session (--idle-after)." placeholder:"DURATION"`

	// UpstreamHeader are header fields of every request to the upstream, "Name: value".
	UpstreamHeader []string `sep:"none" help:"Header field added to every request to the MCP server; may be repeated." placeholder:"NAME:VALUE"`

	// ForwardHeader are the names of the client's header fields that the upstream gets.
	// Credentials cannot be among them, since edges pass none on.
	ForwardHeader []string `default:"Accept-Language,traceparent,tracestate,baggage,Mcp-Method,Mcp-Name" help:"Header fields of the client that are forwarded to the MCP server; credentials are never forwarded." placeholder:"NAME"`

	// BridgeName is the name by which a restarted bridge recognizes its sessions:
	// each bridge must have its own. Default: the host's name.
	BridgeName string `help:"Unique name of this bridge, by which it finds its sessions after a restart (default: the host's name)." placeholder:"NAME"`

	// AcceptAfter is how long a client waits for the upstream to refuse its requests;
	// a later refusal is an error in its stream. Default: 100 ms.
	AcceptAfter time.Duration `default:"100ms" help:"How long the MCP server may take to reject a request with an HTTP status."`

	// CallTimeout is how long a request in a session may be without any message from the upstream
	// before it is cancelled. 0 and -1: no limit. A request of revision 2026-07-28 has none: it
	// ends with its client, whose connection edges watch. Default: 5 min.
	CallTimeout flagtype.Duration `default:"5m" help:"Maximum time without any message before a request in a session is cancelled; 0 or -1 for unlimited. Requests and tasks of MCP 2026-07-28 have no such limit." placeholder:"DURATION"`

	// OpenTimeout bounds initialize, the time until the upstream accepts a message that is
	// no request, and the attempts to resume a stream that broke. Default: 30 s.
	OpenTimeout time.Duration `default:"30s" help:"Maximum duration of initialize, and of an outage of the MCP server during a request."`

	// CancelGrace is how long a call of revision 2026-07-28 continues whose client has disconnected and may
	// reconnect, with --mcp-resume-stateless of the edges: longer than the 10 s between two questions of the edge
	// that it reconnects to, or 0. Default: 15 s.
	CancelGrace time.Duration `default:"15s" help:"How long a call of MCP 2026-07-28 continues after its client has disconnected, where edges let clients resume it (--mcp-resume-stateless); at least 12s, or 0 for none."`

	// InputWait is how long a client may take to answer a question of an MCP server during a call, where
	// the bridge translates between revisions. Default: 10 min.
	InputWait time.Duration `default:"10m" help:"How long a client may take to answer what the MCP server asks during a call that is translated between revisions of MCP."`

	// ListenMemory is how long the bridge remembers a client without a session that listened. Such a
	// client receives every kind of change that it may have missed; 0: none. Default: 1 h.
	ListenMemory time.Duration `default:"1h" help:"How long after a client of MCP 2026-07-28 has listened (subscriptions/listen) its next request to listen reports each kind of change once, since some may have been missed; 0 for never."`

	// TaskAfter is how long a call of a client that declares the tasks extension may take before it
	// becomes a task; 0 for as long as the bridge waits for an immediate answer (250 ms). -1: no
	// call does. Default: 10 s.
	TaskAfter flagtype.Duration `default:"10s" help:"How long a tools/call of a client with the tasks extension of MCP may take before it becomes a task; -1 for never." placeholder:"DURATION"`

	// TaskTools override TaskAfter for some tools, each as NAME=POLICY; see [TaskPolicy].
	TaskTools []string `help:"Tasks policy of a tool: never, after (--task-after), always (at once), or required (after, and clients without the extension are refused); may be repeated." placeholder:"NAME=POLICY"`

	// TaskTTL is how long a task is kept after its end. Default: 1 h.
	TaskTTL time.Duration `name:"task-ttl" default:"1h" help:"How long the result of a task is kept, up to --keep-closed-override of the janitor."`

	// CacheBytes bounds the results of the MCP server that are kept for other clients; 0 for none.
	// Default: 16 MiB.
	CacheBytes flagtype.Bytes `default:"16MiB" help:"Memory for results that the MCP server lets all clients of MCP 2026-07-28 share (cacheScope public); 0 for none." placeholder:"BYTES"`

	// MaxCalls is how many requests of clients may be open at once, and how many may be
	// handed over at once; more are answered 503. Of each, while more than three quarters
	// are taken, a client with more than a quarter gets no new one. Default: 4096.
	MaxCalls int `default:"4096" help:"Maximum number of open requests; while more than three quarters are in use, no client gets more than a quarter." placeholder:"N"`

	// Sessions bound the sessions of all services.
	Sessions session.LimitsConfig `kong:"-"`

	// AckTimeout bounds an attempt to publish. Default: 2 s.
	AckTimeout time.Duration `kong:"-"`
}

// Wanted reports whether there is an MCP server to stand beside.
func (c Config) Wanted() bool { return c.Upstream != "" || c.UpstreamCommand != "" }

// leastGrace is the least grace of a call whose client reconnects: its new edge asks about it every 10 s.
const leastGrace = 12 * time.Second

// Validate returns an error that names the first flag whose value makes no sense. A
// configuration without an MCP server makes sense: there is no bridge then, and its other flags may be zero.
func (c Config) Validate() error {
	if c.UpstreamCommand != "" {
		if c.Upstream != "" {
			return errors.New("--upstream and --upstream-command exclude each other")
		}
		if _, err := c.argv(); err != nil {
			return err
		}
	} else if u, err := url.Parse(c.Upstream); c.Upstream != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return errors.New("--upstream must be an http or https URL") // which may hold a key
	}
	if _, err := c.Header(); err != nil {
		return err
	}
	if _, err := c.TaskPolicies(); err != nil {
		return err
	}
	for _, name := range c.UpstreamEnv {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.HasPrefix(name, "REJOIN_") {
			return fmt.Errorf("--upstream-env must be the name of a variable that is not Rejoin's own, unlike %q", name)
		}
	}
	for _, name := range c.ForwardHeader {
		if !fieldName.MatchString(name) || reserved[textproto.CanonicalMIMEHeaderKey(name)] {
			return fmt.Errorf("--forward-header cannot be %q", name)
		}
		if credentials[textproto.CanonicalMIMEHeaderKey(name)] {
			return fmt.Errorf("--forward-header cannot be %q: clients' credentials are for the edge, which passes none on; give the MCP server its own with --upstream-header", name)
		}
	}
	if !c.Wanted() {
		return nil
	}
	switch {
	case c.AcceptAfter <= 0:
		return fmt.Errorf("--accept-after must be positive, not %s", c.AcceptAfter)
	case c.OpenTimeout <= 0:
		return fmt.Errorf("--open-timeout must be positive, not %s", c.OpenTimeout)
	case c.UpstreamCommand != "" && c.MaxProcesses < 1:
		return fmt.Errorf("--max-processes must be at least 1, not %d", c.MaxProcesses)
	case c.ProcessIdleAfter < -1 || c.ProcessIdleAfter > 0 && c.ProcessIdleAfter < flagtype.Duration(time.Second):
		return fmt.Errorf("--process-idle-after must be at least 1s, or -1 for as long as any other session, not %s", time.Duration(c.ProcessIdleAfter))
	case c.CancelGrace < 0 || c.CancelGrace > 0 && c.CancelGrace < leastGrace:
		return fmt.Errorf("--cancel-grace must be at least %s, or 0 for none, not %s", leastGrace, c.CancelGrace)
	case c.InputWait <= 0:
		return fmt.Errorf("--input-wait must be positive, not %s", c.InputWait)
	case c.ListenMemory < 0 || c.ListenMemory > 0 && c.ListenMemory < time.Second:
		return fmt.Errorf("--listen-memory must be at least 1s, or 0 for never, not %s", c.ListenMemory)
	case c.TaskAfter < -1:
		return fmt.Errorf("--task-after must not be negative, or -1 for never, not %s", time.Duration(c.TaskAfter))
	case c.TaskTTL < 0:
		return fmt.Errorf("--task-ttl must not be negative, but is %s", c.TaskTTL)
	case c.CacheBytes < 0:
		return fmt.Errorf("--cache-bytes must not be negative, but is %d", c.CacheBytes)
	case c.MaxCalls < 1:
		return fmt.Errorf("--max-calls must be at least 1, not %d", c.MaxCalls)
	case c.AckTimeout < 0:
		return fmt.Errorf("--ack-timeout must be positive, not %s", c.AckTimeout)
	}
	return nil
}

// reserved are the fields that the bridge, or net/http, sets by itself.
var reserved = map[string]bool{
	"Accept": true, "Content-Type": true, "Content-Length": true, "Host": true, "Connection": true,
	"Transfer-Encoding": true, "Upgrade": true, "Last-Event-Id": true,
	upstream.HeaderSession: true, upstream.HeaderVersion: true,
}

// credentials are the fields that edges keep to themselves.
var credentials = map[string]bool{"Authorization": true, "Cookie": true, "Proxy-Authorization": true}

// fieldName is the name of a header field as in RFC 9110, section 5.
var fieldName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// Header returns the fields of every request.
func (c Config) Header() (http.Header, error) {
	h := http.Header{}
	for _, line := range c.UpstreamHeader {
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !ok || !fieldName.MatchString(name) || !upstream.IsFieldValue(value) {
			return nil, errors.New(`--upstream-header must be "Name: value"`) // which may be a key
		}
		if reserved[textproto.CanonicalMIMEHeaderKey(name)] {
			return nil, fmt.Errorf("--upstream-header cannot be %q, which the bridge sets", name)
		}
		h.Add(name, value)
	}
	return h, nil
}

// Name returns the bridge's name.
func (c Config) Name() (string, error) {
	host, err := os.Hostname()
	if name := cmp.Or(c.BridgeName, host); name != "" {
		return name, nil
	}
	return "", fmt.Errorf("the host has no name, give --bridge-name: %w", err)
}

// argv returns the program and its arguments; nil without a command.
func (c Config) argv() ([]string, error) {
	if c.UpstreamCommand == "" {
		return nil, nil
	}
	p := shellwords.NewParser()
	argv, err := p.Parse(c.UpstreamCommand)
	if err != nil || p.Position >= 0 || len(argv) == 0 {
		return nil, errors.New("--upstream-command must be a program and its arguments, quoted as in a shell; for pipes and the like give it to sh -c")
	}
	return argv, nil
}

// ShownUpstream returns the public part of the MCP server's address: scheme and host of the URL, whose
// other parts may hold a key, or the program without arguments.
func (c Config) ShownUpstream() string {
	if argv, err := c.argv(); err == nil && len(argv) > 0 {
		return argv[0]
	}
	u, err := url.Parse(c.Upstream)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// WithDefaults sets the fields that have no flag here.
func (c Config) WithDefaults() Config {
	c.AckTimeout = cmp.Or(c.AckTimeout, 2*time.Second)
	return c
}

// CloseTimeout bounds an attempt to end a session in the log.
func (c Config) CloseTimeout() time.Duration { return c.AckTimeout + 5*time.Second }

// Command returns how the processes of an MCP server are started; nil when there are none.
func (c Config) Command(environ []string) (*upstream.Command, error) {
	argv, err := c.argv()
	if argv == nil || err != nil {
		return nil, err
	}
	return upstream.NewCommand(argv, environ, c.UpstreamEnv, c.UpstreamUser)
}

// TaskPolicy selects the calls of a tool that become tasks.
type TaskPolicy string

const (
	// TaskNever leaves calls of the tool as they are.
	TaskNever TaskPolicy = "never"
	// TaskLate makes a task of a call that takes longer than --task-after.
	TaskLate TaskPolicy = "after"
	// TaskAlways makes a task of each call, before the MCP server has it.
	TaskAlways TaskPolicy = "always"
	// TaskRequired is TaskLate, and refuses clients without the extension.
	TaskRequired TaskPolicy = "required"
)

// TaskPolicies reads the flag.
func (c Config) TaskPolicies() (map[string]TaskPolicy, error) {
	all := map[string]TaskPolicy{}
	for _, text := range c.TaskTools {
		i := strings.LastIndexByte(text, '=')
		if i < 1 {
			return nil, fmt.Errorf("--task-tools must be NAME=POLICY, not %q", text)
		}
		switch policy := TaskPolicy(text[i+1:]); policy {
		case TaskNever, TaskLate, TaskAlways, TaskRequired:
			all[text[:i]] = policy
		default:
			return nil, fmt.Errorf("--task-tools has the policies never, after, always and required, not %q", policy)
		}
	}
	return all, nil
}
