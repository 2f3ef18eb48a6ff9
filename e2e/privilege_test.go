package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/deploy/credentials"
	"rejoin/shared/event"
	"rejoin/shared/inbox"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// privileged is NATS as it is deployed, with a user for each service, and some for others.
type privileged struct {
	*natstest.Server
	dir      string // of the keys
	programs []*program
}

func startPrivileged(t *testing.T) *privileged {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys")
	return &privileged{Server: natstest.StartConfig(t, configured(t, keys)), dir: keys}
}

// service starts a service as its user.
func (p *privileged) service(t *testing.T, user string, args ...string) *program {
	t.Helper()
	started := startService(t, user, append(args, "--nats-url="+p.URL(), "--nats-nkey="+p.seed(user))...)
	p.programs = append(p.programs, started)
	return started
}

// wereAllowed ends programs, and expects that NATS has refused none of their requests.
func wereAllowed(t *testing.T, programs []*program) {
	t.Helper()
	for _, p := range programs {
		p.end(syscall.SIGTERM)
		for line := range strings.Lines(p.log.String()) {
			if strings.Contains(strings.ToLower(line), "permissions violation") {
				t.Errorf("%s: %s", filepath.Base(p.cmd.Path), line)
			}
		}
	}
}

// configured makes the keys in a folder, and returns NATS's configuration there.
func configured(t *testing.T, keys string) (file string) {
	t.Helper()
	must.NoError(t, credentials.Make(keys))
	conf := must.Value(os.ReadFile("../deploy/nats/nats.conf"))(t)
	// The server finds the public keys beside its configuration file.
	file = filepath.Join(keys, "nats", "nats.conf")
	must.NoError(t, os.WriteFile(file, conf, 0o600))
	must.NoError(t, os.Symlink(".", filepath.Join(keys, "nats", "keys")))
	return file
}

func (p *privileged) seed(user string) string {
	return credentials.Seed(p.dir, user)
}

// as connects as a service does.
func (p *privileged) as(t *testing.T, user string) *nats.Conn {
	t.Helper()
	seed := must.Value(nats.NkeyOptionFromSeed(p.seed(user)))(t)
	return p.Connect(seed, nats.Name(user), nats.CustomInboxPrefix(inboxOf(user)), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

// inboxOf is the prefix of a user's inboxes: that of the service, or of the command that an
// operator uses. The others have the default of NATS clients.
func inboxOf(user string) string {
	switch user {
	case "publisher", "direct":
		return "_INBOX"
	case "operator":
		return inbox.Prefix("rejoin log")
	default:
		return inbox.Prefix(user)
	}
}

// operate runs "rejoin log" as the operator.
func (p *privileged) operate(t *testing.T, args ...string) (printed string) {
	t.Helper()
	return rejoinLog(t, append(args, "--nats-url="+p.URL(), "--nats-nkey="+p.seed("operator"))...)
}

// rejoinLog runs "rejoin log" when a janitor acts, and returns its output.
func rejoinLog(t *testing.T, args ...string) (printed string) {
	t.Helper()
	args = append([]string{"log"}, args...)
	waittest.Until(t, "a janitor acts", func() bool {
		out, err := exec.CommandContext(t.Context(), built(t, rejoinPackage), args...).CombinedOutput() //nolint:gosec // the program under test
		if printed = string(out); err != nil && !strings.Contains(printed, "no janitor answers") {
			t.Fatalf("rejoin %v: %v\n%s", args, err, out)
		}
		return err == nil
	})
	return printed
}

// mayPublish has the users that may publish to a subject, by their first letters. The
// others are refused.
var mayPublish = map[string]string{
	"mcp.0.session.=open":              "ijb",
	"mcp.0.=generation.id":             "ijb",
	"mcp.0.session.life.stream":        "ibd",
	"mcp.0.session.=.stream":           "ibd",
	"mcp.0.session.life.=birth.stream": "ijbd",
	"mcp.0.session.life.=seal":         "ijb",
	"mcp.0.session.life.=end":          "ijb",
	"mcp.0.session.life.=end.stream":   "ijb",
	"mcp.0.session.life.=clear":        "ib",
	"mcp.0.session.life.=clear.stream": "ib",
	"mcp.0.session.life.=trim":         "j",
	"mcp.0.session.life.=trim.stream":  "j",
	"mcp.0.=floor.=.=trim":             "j",
	"mcp.0.session":                    "",
	"mcp.0.session.stream":             "",
	"mcp.ingest.session":               "d",
	"mcp.ingest.session.stream":        "p", // a publisher's
	"mcp.ingest.session.=open":         "p",
	"mcp.ingest.=generation.id":        "p",
	"mcp.log.set.0":                    "o",
	"mcp.log.set":                      "",
	"mcp.log.other":                    "",
	"mcp.edge.present":                 "j",
	"mcp.edge.audience":                "j",
	"mcp.janitor.other":                "",
	"mcp.janitor.alive.one":            "j",
	"mcp.janitor.alive.=open":          "j",
	"mcp.janitor.ask":                  "j",
	"mcp.janitor.ask.one":              "j",
	"mcp.rpc.open":                     "s",
	"mcp.rpc.s.session":                "s",
	"mcp.rpc.s.=open":                  "s",
	"mcp.rpc.b.test":                   "b",
	"anything":                         "",

	// Answers go to the caller; those to other accounts go to a subject for which NATS knows the caller.
	"_R_.x":                 "ij",
	"_INBOX_ingest.x":       "",
	"_INBOX_sse-edge.x":     "b",
	"_INBOX_janitor.x":      "sjb",
	"_INBOX_bridge.x":       "b",
	"_INBOX_rejoin=20log.x": "",
	"_INBOX.x":              "",

	"$KV.MCP_SESSIONS.x": "ijb",
	"$KV.MCP_LEASE.x":    "j",
	"$KV.MCP_ATTACH.x":   "s",
	"$KV.MCP_CALLS.x":    "b",
	"$KV.OTHER.x":        "",

	"$JS.API.INFO":                                  "j",
	"$JS.API.STREAM.INFO.MCP_0":                     "isjbdo",
	"$JS.API.STREAM.INFO.KV_MCP_SESSIONS":           "isjbo",
	"$JS.API.STREAM.NAMES":                          "",
	"$JS.API.STREAM.LIST":                           "",
	"$JS.API.STREAM.CREATE.MCP_0":                   "j",
	"$JS.API.STREAM.CREATE.KV_MCP_SESSIONS":         "j",
	"$JS.API.STREAM.CREATE.KV_MCP_ATTACH":           "j",
	"$JS.API.STREAM.CREATE.KV_MCP_CALLS":            "j",
	"$JS.API.STREAM.UPDATE.MCP_0":                   "j",
	"$JS.API.STREAM.UPDATE.KV_MCP_ATTACH":           "j",
	"$JS.API.STREAM.UPDATE.KV_MCP_CALLS":            "j",
	"$JS.API.STREAM.DELETE.MCP_0":                   "",
	"$JS.API.STREAM.PURGE.MCP_0":                    "j",
	"$JS.API.STREAM.PURGE.KV_MCP_ATTACH":            "",
	"$JS.API.STREAM.PURGE.KV_MCP_CALLS":             "",
	"$JS.API.STREAM.SNAPSHOT.MCP_0":                 "",
	"$JS.API.STREAM.RESTORE.MCP_0":                  "",
	"$JS.API.STREAM.MSG.DELETE.MCP_0":               "j",
	"$JS.API.STREAM.MSG.DELETE.KV_MCP_ATTACH":       "",
	"$JS.API.STREAM.MSG.DELETE.KV_MCP_CALLS":        "",
	"$JS.API.STREAM.MSG.GET.MCP_0":                  "isjb",
	"$JS.API.STREAM.MSG.GET.KV_MCP_SESSIONS":        "isjb",
	"$JS.API.STREAM.MSG.GET.KV_MCP_LEASE":           "j",
	"$JS.API.STREAM.MSG.GET.KV_MCP_ATTACH":          "s",
	"$JS.API.STREAM.MSG.GET.KV_MCP_CALLS":           "b",
	"$JS.API.DIRECT.GET.MCP_0":                      "",
	"$JS.API.DIRECT.GET.KV_MCP_LEASE.$KV.x":         "j",
	"$JS.API.DIRECT.GET.KV_MCP_ATTACH.$KV.x":        "s",
	"$JS.API.DIRECT.GET.KV_MCP_CALLS.$KV.x":         "b",
	"$JS.API.CONSUMER.CREATE.MCP_0":                 "",
	"$JS.API.CONSUMER.DURABLE.CREATE.MCP_0.c":       "",
	"$JS.API.CONSUMER.CREATE.MCP_0.c":               "sj",
	"$JS.API.CONSUMER.CREATE.MCP_0.c.mcp.0.s.l.>":   "sjb",
	"$JS.API.CONSUMER.CREATE.MCP_0.c.mcp.0.s.=open": "sjb",
	"$JS.API.CONSUMER.CREATE.KV_MCP_SESSIONS.c":     "isjb",
	"$JS.API.CONSUMER.CREATE.KV_MCP_LEASE.c":        "j",
	"$JS.API.CONSUMER.CREATE.KV_MCP_ATTACH.c":       "s",
	"$JS.API.CONSUMER.CREATE.KV_MCP_CALLS.c":        "b",
	"$JS.API.CONSUMER.NAMES.MCP_0":                  "",
	"$JS.API.CONSUMER.LIST.MCP_0":                   "",
	"$JS.API.CONSUMER.MSG.NEXT.MCP_0.c":             "sjb",
	"$JS.API.CONSUMER.DELETE.MCP_0.c":               "sjb",
	"$JS.API.CONSUMER.LEADER.STEPDOWN.MCP_0.c":      "",
	"$JS.API.META.LEADER.STEPDOWN":                  "",
	"$SYS.REQ.SERVER.PING":                          "",
	"$SYS.REQ.SERVER.PING.CONNZ":                    "",
	"$SYS.REQ.ACCOUNT.PING.STATZ":                   "j", // which servers are there
	"$SYS.REQ.ACCOUNT.PING.CONNZ":                   "",
}

// maySubscribe is the same for subscriptions; a queue group follows its subject.
var maySubscribe = map[string]string{
	"_INBOX_ingest.>":       "i",
	"_INBOX_sse-edge.>":     "s",
	"_INBOX_janitor.>":      "j",
	"_INBOX_bridge.>":       "b",
	"_INBOX_rejoin=20log.>": "o",
	"_INBOX.>":              "pd",
	"_R_.>":                 "",
	"_INBOX_*.>":            "",
	">":                     "",
	"mcp.>":                 "",
	"mcp.*.*.*.>":           "",
	"mcp.ingest.*.* ingest": "i",
	"mcp.ingest.* ingest":   "i",
	"mcp.ingest.>":          "",
	"mcp.log.set.0 janitor": "j",
	"mcp.log.set.0":         "",
	"mcp.edge.present":      "sb",
	"mcp.edge.audience":     "s",
	"mcp.janitor.>":         "",
	"mcp.janitor.alive.one": "j",
	"mcp.janitor.ask":       "j",
	"mcp.janitor.ask.one":   "j",
	"mcp.rpc.open bridge":   "b",
	"mcp.rpc.open":          "",
	"mcp.rpc.s.one bridge":  "b",
	"mcp.rpc.s.one":         "",
	"mcp.rpc.s.one other":   "",
	"mcp.rpc.b.one":         "b",
	"$SRV.PING ingest":      "i",
	"$KV.>":                 "",
	"$KV.MCP_SESSIONS.>":    "",
	"$JS.API.>":             "",
	"$JS.EVENT.ADVISORY.>":  "",
}

func TestPermissions_EachUser(t *testing.T) {
	t.Parallel()
	srv := startPrivileged(t)
	for _, user := range slices.Concat(credentials.Services, credentials.Outside) {
		t.Run(user, func(t *testing.T) {
			nc := srv.as(t, user)
			// refused reports whether the server refused an operation, by the text of its error.
			refused := func(what string) bool {
				must.NoError(t, nc.Flush()) // its answer comes after a refusal
				return nc.LastError() != nil && strings.Contains(nc.LastError().Error(), what)
			}
			for subject, users := range mayPublish {
				must.NoError(t, nc.Publish(subject, nil))
				got := !refused(fmt.Sprintf("Publish to %q", subject))
				if want := strings.Contains(users, user[:1]); got != want {
					t.Errorf("may publish to %s: %t, want %t", subject, got, want)
				}
			}
			for place, users := range maySubscribe {
				subject, queue, _ := strings.Cut(place, " ")
				sub := must.Value(nc.QueueSubscribeSync(subject, queue))(t)
				what := fmt.Sprintf("Subscription to %q", subject)
				if queue != "" {
					what += fmt.Sprintf(" using queue %q", queue)
				}
				got := !refused(what)
				if want := strings.Contains(users, user[:1]); got != want {
					t.Errorf("may subscribe to %s: %t, want %t (%v)", place, got, want, nc.LastError())
				}
				_ = sub.Unsubscribe() // a refused one is removed already
			}
		})
	}
	if _, err := nats.Connect(srv.URL()); err == nil {
		t.Error("somebody without a key is let in")
	}
}

// A session from its first message to its end, over everything that the services do on
// NATS, none of which NATS refuses.
func TestPrivileges_Services(t *testing.T) {
	t.Parallel()
	srv := startPrivileged(t)
	janitor := srv.service(t, "janitor", "--interval=50ms", "--nats-sync-interval=50ms", "--max-events-per-session=20")
	ingest := srv.service(t, "ingest", "--ack-timeout=30s")
	edge := srv.service(t, "sse-edge")
	other := srv.service(t, "janitor", "--interval=50ms", "--nats-sync-interval=50ms")

	publish := func(n int) answer {
		return do(t, http.MethodPost, ingest.url+streamPath("work", "main"), numbered(n), "Content-Type", "application/json", "Idempotency-Key", strconv.Itoa(n))
	}
	// shows reads pages after a cursor until one has a text. An edge may have no page
	// while NATS is down.
	shows := func(edge *program, after, what string) {
		t.Helper()
		waittest.Until(t, "the page shows "+what, func() bool {
			a := do(t, http.MethodGet, edge.url+streamPath("work", "main")+"?after="+after, "", "Accept", "application/json")
			if a.status != http.StatusOK {
				return false
			}
			after = stringIn(t, a.body, "cursor")
			return strings.Contains(a.body, what)
		})
	}
	var early string
	for n := 1; n <= 50; n++ {
		a, _ := inTime(t, "the log answers", func() answer { return publish(n) })
		if a.status != http.StatusCreated {
			t.Fatalf("message %d is answered %d %s", n, a.status, a.body)
		}
		if n == 5 {
			early = stringIn(t, a.body, "id")
		}
	}
	shows(edge, "", `"n":50`)

	waittest.Until(t, "the session is trimmed", func() bool {
		var detail struct {
			Events int `json:"events"`
		}
		a := do(t, http.MethodGet, janitor.url+"/v1/sessions/work", "")
		return json.Unmarshal([]byte(a.body), &detail) == nil && detail.Events == 20
	})
	waittest.Until(t, "the other janitor asks it", func() bool {
		a := do(t, http.MethodGet, other.url+"/v1/sessions?contains=wor", "")
		return a.status == http.StatusOK && strings.Contains(a.body, `"events":20`)
	})
	// An edge with an empty window reads the log, which announces removals.
	late := srv.service(t, "sse-edge", "--window-backfill=-1")
	waittest.Until(t, "the edge reports what is trimmed", func() bool {
		a := do(t, http.MethodGet, late.url+streamPath("work", "main")+"?after="+early, "", "Accept", "application/json")
		return strings.Contains(a.body, `"reason":"trimmed","certain":true`)
	})

	overNATS(t, srv.as(t, "publisher"), "mcp.ingest.work.main", numbered(51))
	shows(edge, "", `"n":51`)

	srv.Stop()
	srv.Start()
	waittest.Until(t, "ingest takes messages again", func() bool { return publish(52).status == http.StatusCreated })
	shows(edge, "", `"n":52`)
	shows(late, "", `"n":52`)

	do(t, http.MethodDelete, ingest.url+"/v1/sessions/work/streams/main?clear=true", "").got(t, http.StatusNoContent)
	shows(edge, "", `"closed":true`)

	// The floor passes all entries, and the janitor writes again those that have to outlive it.
	work := event.Subject{Partition: event.Partition("work", partitions), Session: "work"}
	nc := srv.as(t, "ingest")
	js := natstest.JetStream(t, nc, jetstream.WithDefaultTimeout(waittest.Timeout))
	state := func() jetstream.StreamState {
		stream := must.Value(js.Stream(t.Context(), fmt.Sprintf("MCP_%d", work.Partition)))(t)
		return stream.CachedInfo().State
	}
	stored := state().LastSeq
	srv.operate(t, "set", "--max-age=1s", "--yes")
	waittest.Until(t, "the floor has passed all that was stored", func() bool { return state().FirstSeq > stored })
	do(t, http.MethodPost, ingest.url+streamPath("work", "other"), numbered(53), "Content-Type", "application/json").got(t, http.StatusCreated)

	// The janitor completes an end that a killed ingest has begun.
	ingest.end(syscall.SIGKILL)
	work.Life, work.Kind = lifeOf(t, nc, "work"), event.Seal
	must.Value(nc.Request(work.String(), nil, waittest.Timeout))(t)
	janitor.end(syscall.SIGTERM) // and gives its lease to the other one
	waittest.Until(t, "the other janitor has closed the session", func() bool {
		return strings.Contains(do(t, http.MethodGet, other.url+"/v1/sessions/work", "").body, `"state":"closed"`)
	})
	wereAllowed(t, srv.programs)
}

// overNATS publishes a message, again while the log does not answer ingest in time.
func overNATS(t *testing.T, nc *nats.Conn, subject, message string) {
	t.Helper()
	var reply *nats.Msg
	waittest.Until(t, "the log answers in time", func() bool {
		reply = must.Value(nc.Request(subject, []byte(message), waittest.Timeout))(t)
		return !strings.Contains(string(reply.Data), `"status":503`)
	})
	if stringIn(t, string(reply.Data), "id") == "" {
		t.Fatalf("a message over NATS is answered %s", reply.Data)
	}
}

// A key of a user outside takes neither all connections nor the memory of NATS.
func TestPrivileges_Limits(t *testing.T) {
	t.Parallel()
	srv := startPrivileged(t)
	for _, user := range []string{"publisher", "direct", "operator"} {
		nc := srv.as(t, user)
		refused := make(chan error, 1)
		nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			select {
			case refused <- err:
			default:
			}
		})
		for n := range 1001 {
			must.Value(nc.SubscribeSync(inboxOf(user) + "." + strconv.Itoa(n)))(t)
		}
		if err := waittest.Receive(t, user+" has too many subscriptions", refused); !errors.Is(err, nats.ErrMaxSubscriptionsExceeded) {
			t.Errorf("%s: %v", user, err)
		}
	}
	var err error
	for n := 0; err == nil && n < 101; n++ {
		var nc *nats.Conn
		if nc, err = nats.Connect(srv.URL(), must.Value(nats.NkeyOptionFromSeed(srv.seed("operator")))(t)); err == nil {
			t.Cleanup(nc.Close)
		}
	}
	if !errors.Is(err, nats.ErrMaxAccountConnectionsExceeded) {
		t.Errorf("an operator's connections: %v", err)
	}
	srv.as(t, "ingest")
}

// A user outside can do its task with its key alone; NATS refuses none of it.
func TestPrivileges_PublishersAndOperators(t *testing.T) {
	t.Parallel()
	srv := startPrivileged(t)
	srv.service(t, "janitor") // makes the log
	srv.service(t, "ingest")
	edge := srv.service(t, "sse-edge")
	overNATS(t, srv.as(t, "publisher"), "mcp.ingest.outside.main", numbered(1))

	direct := srv.as(t, "direct")
	js := natstest.JetStream(t, direct, jetstream.WithDefaultTimeout(waittest.Timeout))
	first := must.Value(js.Stream(t.Context(), "MCP_0"))(t)
	partitions := must.Value(strconv.Atoi(first.CachedInfo().Config.Metadata["rejoin.partitions"]))(t)
	at := event.Subject{Partition: event.Partition("outside", partitions), Session: "outside"}
	asked, err := direct.Request("mcp.ingest.outside", nil, waittest.Timeout)
	if err != nil {
		t.Fatalf("the life: %v", err)
	}
	at.Life, at.Stream = stringIn(t, string(asked.Data), "life"), "straight"
	for _, e := range []struct{ kind, fence event.Kind }{{event.Birth, event.Seal}, {event.Message, event.End}} {
		at.Kind = e.kind
		msg, fence := nats.NewMsg(at.String()), at
		if fence.Kind = e.fence; e.fence == event.Seal {
			fence.Stream = ""
		}
		msg.Data = []byte(numbered(2))
		if _, err := js.PublishMsg(t.Context(), msg, jetstream.WithExpectLastSequenceForSubject(0, fence.String())); err != nil {
			t.Fatalf("%s straight to the log: %v", e.kind, err)
		}
	}
	waittest.Until(t, "both are shown", func() bool {
		a := do(t, http.MethodGet, edge.url+"/v1/sessions/outside/events", "", "Accept", "application/json")
		return strings.Contains(a.body, `"n":1}`) && strings.Contains(a.body, `"n":2}`)
	})

	srv.operate(t, "set", "--max-age=2h")
	if out := srv.operate(t, "show"); !strings.Contains(out, "max-age                  2h\n") {
		t.Errorf("the log is set to\n%s", out)
	}
}
