package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/deploy/credentials"
	"rejoin/shared/eventlog"
	"rejoin/shared/logset"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// mayPublish has the subjects that a user may publish to. The tests here try to get a
// message there in the other ways that NATS has: as the answer to a request, by headers, by
// consumers, and over the imports of an account.

// mayRollUp has the users that may replace the messages of a stream by one, by their
// first letters: those of a stream with one writer.
var mayRollUp = map[string]string{"KV_MCP_CALLS": "b"}

// answering are the subjects on which services answer. The value is a queue group: a
// consumer delivers to one that has subscribed to the very subject.
var answering = map[string]string{
	"mcp.ingest.session": "", "mcp.ingest.session.stream": "", "mcp.log.set.0": "janitor",
	"mcp.edge.present": "", "mcp.edge.audience": "", "mcp.rpc.open": "bridge", "mcp.rpc.b.test": "",
}

// stored are subjects that each belong to a stream.
var stored = map[string]string{
	"mcp.0.session.life.stream": "MCP_0", "mcp.0.session.life.=end": "MCP_0", "mcp.0.session.life.=trim": "MCP_0", "mcp.0.session.=open": "MCP_0",
	"$KV.MCP_SESSIONS.x": "KV_MCP_SESSIONS", "$KV.MCP_LEASE.x": "KV_MCP_LEASE", "$KV.MCP_ATTACH.x": "KV_MCP_ATTACH", "$KV.MCP_CALLS.x": "KV_MCP_CALLS",
}

// streams are those of the log and the buckets, with the subjects of their consumers in mayPublish.
var streams = map[string]string{
	"MCP_0": "$JS.API.CONSUMER.CREATE.MCP_0.c.mcp.0.s.l.>", "KV_MCP_SESSIONS": "$JS.API.CONSUMER.CREATE.KV_MCP_SESSIONS.c",
	"KV_MCP_LEASE": "$JS.API.CONSUMER.CREATE.KV_MCP_LEASE.c", "KV_MCP_ATTACH": "$JS.API.CONSUMER.CREATE.KV_MCP_ATTACH.c", "KV_MCP_CALLS": "$JS.API.CONSUMER.CREATE.KV_MCP_CALLS.c",
}

func may(table map[string]string, user, what string) bool {
	return strings.Contains(table[what], user[:1])
}

func outside(user string) bool { return slices.Contains(credentials.Outside, user) }

// walled is NATS as it is deployed, with all services, and an observer in their account,
// which may do everything.
type walled struct {
	*privileged
	t        *testing.T
	users    []string
	as       map[string]*nats.Conn
	observer *nats.Conn
	js       jetstream.JetStream // the observer's
	heard    map[string]chan *nats.Msg
}

func startWalled(t *testing.T) *walled {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys")
	file := configured(t, keys)
	conf := must.Value(os.ReadFile(file))(t)
	conf = []byte(strings.Replace(string(conf), "users: [", "users: [ { user: observer, password: observer }", 1)) // the first account
	must.NoError(t, os.WriteFile(file, conf, 0o600))
	w := &walled{
		privileged: &privileged{Server: natstest.StartConfig(t, file), dir: keys}, t: t,
		users: slices.Concat(credentials.Services, credentials.Outside), as: map[string]*nats.Conn{}, heard: map[string]chan *nats.Msg{},
	}
	// The victim in the bucket of the lease must outlive the test.
	w.service(t, "janitor", "--partitions=1", "--lease=10m")
	ingest := w.service(t, "ingest", "--ack-timeout=30s").url
	w.service(t, "sse-edge")
	w.service(t, "bridge", "--bridge-name=test", "--upstream="+newUpstream(t).URL)
	for _, user := range w.users {
		w.as[user] = w.privileged.as(t, user)
	}
	w.observer = w.Connect(nats.UserInfo("observer", "observer"))
	w.js = must.Value(jetstream.New(w.observer, jetstream.WithDefaultTimeout(waittest.Timeout)))(t)
	// In each stream lies a message, that of the log a request for other limits.
	l := must.Value(eventlog.Open(t.Context(), w.observer, slog.New(slog.DiscardHandler)))(t)
	defer l.Close()
	request := struct {
		Version string `json:"jsonrpc"`
		Method  string `json:"method"`
		logset.Request
	}{"2.0", "evil", logset.Request{From: l.Settings(), To: l.Settings()}}
	request.To.MaxAge /= 2
	do(t, http.MethodPost, ingest+streamPath("victim", "main"), jsonOf(t, request), "Content-Type", jsonType).got(t, http.StatusCreated)
	for _, subject := range []string{"$KV.MCP_LEASE.victim", "$KV.MCP_ATTACH.victim", "$KV.MCP_CALLS.victim"} {
		must.Value(w.js.Publish(t.Context(), subject, []byte("{}")))(t)
	}
	return w
}

// listen has the observer receive the messages to subjects.
func (w *walled) listen(which func(subject string) bool) {
	w.t.Helper()
	for subject := range mayPublish {
		if !which(subject) {
			continue
		}
		w.heard[subject] = make(chan *nats.Msg, 10_000)
		must.Value(w.observer.ChanSubscribe(subject, w.heard[subject]))(w.t)
	}
	must.NoError(w.t, w.observer.Flush())
}

func everything(string) bool { return true }

// settle waits until all earlier requests have been answered.
func (w *walled) settle() {
	w.t.Helper()
	for _, nc := range w.as {
		must.NoError(w.t, nc.Flush())
	}
	for _, ask := range []struct{ user, subject, data string }{
		{"publisher", "mcp.ingest.settle.main", numbered(1)},
		{"direct", "mcp.ingest.settle", ""},
		{"operator", "mcp.log.set.0", "{}"},
		{"janitor", "mcp.edge.present", "{}"},
		{"sse-edge", "mcp.rpc.open", ""},
		{"sse-edge", "$JS.API.STREAM.INFO.MCP_0", ""},
	} {
		// A janitor whose lease was written over drops the request, and acts again.
		waittest.Until(w.t, ask.user+" is answered on "+ask.subject, func() bool {
			_, err := w.as[ask.user].Request(ask.subject, []byte(ask.data), 5*time.Second)
			return err == nil
		})
	}
	must.NoError(w.t, w.observer.Flush())
}

// arrived returns the messages that have reached a subject and are no requests: they have
// no reply subject.
func (w *walled) arrived(subject string) (messages []*nats.Msg) {
	for {
		select {
		case msg := <-w.heard[subject]:
			if msg.Reply == "" {
				messages = append(messages, msg)
			}
		default:
			return messages
		}
	}
}

// expectNothing reports the messages that have arrived where a user may not publish.
func (w *walled) expectNothing(user, how string) {
	w.t.Helper()
	w.settle()
	for subject := range mayPublish {
		for _, msg := range w.arrived(subject) {
			if by := cmp.Or(tracedUser(msg), user); !may(mayPublish, by, subject) {
				w.t.Errorf("%s reaches %s %s: %.200q", by, subject, how, msg.Data)
			}
		}
	}
}

// tracedUser returns the user that published the message of a trace, or "". NATS sends
// traces some time later, also after its answers to later requests.
func tracedUser(msg *nats.Msg) string {
	var trace struct{ Events []struct{ Name string } }
	if json.Unmarshal(msg.Data, &trace) != nil || len(trace.Events) == 0 {
		return ""
	}
	return trace.Events[0].Name
}

// contents returns how many messages the streams hold, by subject, without those that
// services write by themselves.
func (w *walled) contents() map[string]uint64 {
	w.t.Helper()
	all := map[string]uint64{}
	for name := range streams {
		stream := must.Value(w.js.Stream(w.t.Context(), name))(w.t)
		info := must.Value(stream.Info(w.t.Context(), jetstream.WithSubjectFilter(">")))(w.t)
		for subject, messages := range info.State.Subjects {
			if !strings.Contains(subject, "settle") && !strings.HasPrefix(subject, "$KV.MCP_ATTACH.=edge.") {
				all[name+" "+subject] = messages
			}
		}
	}
	return all
}

func TestReplies_NoAnswerReachesAForeignSubject(t *testing.T) {
	t.Parallel()
	w := startWalled(t)
	w.listen(everything)
	before := w.contents()
	for _, user := range w.users {
		for subject := range mayPublish {
			_, answers := answering[subject]
			// To users in the account of the log, JetStream itself answers on any subject.
			if !may(mayPublish, user, subject) || !outside(user) && !answers {
				continue
			}
			for reply := range mayPublish {
				if inbox := strings.HasPrefix(reply, "_"); inbox && !outside(user) {
					continue // they are for answers
				}
				must.NoError(t, w.as[user].PublishRequest(subject, reply, []byte(numbered(1))))
			}
		}
		w.expectNothing(user, "with an answer")
	}
	after := w.contents()
	for what := range after { // events of users that may publish them
		if strings.Contains(what, ".session.") || strings.HasSuffix(what, ".session") {
			delete(after, what)
		}
	}
	if diff := gocmp.Diff(before, after); diff != "" {
		t.Errorf("the streams have changed: %s", diff)
	}
}

// A user outside has an account of its own: only messages to its imports leave it, and
// only answers enter it.
func TestImports_OnlyWhatIsExported(t *testing.T) {
	t.Parallel()
	w := startWalled(t)
	w.listen(everything)
	// The inboxes that users outside may listen on.
	inboxes := map[string]chan *nats.Msg{}
	for _, user := range credentials.Outside {
		inboxes[user] = make(chan *nats.Msg, 10_000)
		must.Value(w.as[user].ChanSubscribe(inboxOf(user)+".x", inboxes[user]))(t)
		must.NoError(t, w.as[user].Flush())
	}
	for _, user := range credentials.Outside {
		for subject := range mayPublish {
			must.NoError(t, w.as[user].Publish(subject, []byte(numbered(1))))
		}
		w.settle()
		for subject := range mayPublish {
			want := 0
			if may(mayPublish, user, subject) {
				want = 1
			}
			if got := len(w.arrived(subject)); got != want {
				t.Errorf("%s reaches %s %d times, want %d", user, subject, got, want)
			}
		}
	}
	for _, user := range credentials.Outside {
		for other := range inboxes {
			must.NoError(t, w.observer.Publish(inboxOf(other)+".x", nil))
			if other == user {
				continue
			}
			for subject := range mayPublish {
				if may(mayPublish, user, subject) && inboxOf(user) != inboxOf(other) {
					must.NoError(t, w.as[user].PublishRequest(subject, inboxOf(other)+".x", nil))
				}
			}
		}
	}
	// Two have inboxes of the same name.
	must.NoError(t, w.as["direct"].PublishRequest("mcp.ingest.session", "_INBOX.x", nil))
	w.settle()
	for user, want := range map[string]int{"publisher": 0, "direct": 1, "operator": 0} {
		if got := len(inboxes[user]); got != want {
			t.Errorf("%s hears %d messages, want %d", user, got, want)
		}
	}
}

func TestHeaders_ActWithTheirUsersPermissions(t *testing.T) {
	t.Parallel()
	w := startWalled(t)
	w.listen(everything)
	for _, user := range w.users {
		js := natstest.JetStream(t, w.as[user], jetstream.WithDefaultTimeout(waittest.Timeout))
		for subject, stream := range stored {
			if !may(mayPublish, user, subject) {
				continue
			}
			for _, roll := range []string{"all", "sub"} {
				msg := nats.NewMsg(subject)
				msg.Data = []byte("{}")
				msg.Header.Set(jetstream.MsgRollup, roll)
				_, err := js.PublishMsg(t.Context(), msg)
				if want := may(mayRollUp, user, stream); (err == nil) != want {
					t.Errorf("%s rolls up %s (%s) with %v, want %t", user, stream, roll, err, want)
				}
			}
			for target := range mayPublish {
				for _, headers := range [][]string{
					{"Nats-Trace-Dest", target},
					{"Nats-Trace-Dest", target, "Nats-Trace-Only", "1"},
					{"Nats-Schedule", "@every 1s", "Nats-Schedule-Target", target},
					{"Nats-Expected-Last-Subject-Sequence", "0", "Nats-Expected-Last-Subject-Sequence-Subject", target},
				} {
					msg := nats.NewMsg(subject)
					msg.Reply, msg.Data = w.as[user].NewRespInbox(), []byte("{}")
					for i := 0; i < len(headers); i += 2 {
						msg.Header.Set(headers[i], headers[i+1])
					}
					must.NoError(t, w.as[user].PublishMsg(msg))
				}
			}
		}
		w.expectNothing(user, "with a header")
	}
	if contents := w.contents(); contents["KV_MCP_SESSIONS $KV.MCP_SESSIONS.victim"] != 1 || contents["MCP_0 mcp.0.victim.=open"] != 1 {
		t.Errorf("the streams hold %v", contents)
	}
}

// A consumer delivers to any subject that somebody listens on. A service that may create one
// can have it deliver to another service, which does nothing then. On the subjects of streams
// only streams listen, for which it does not deliver.
func TestConsumers_DeliveriesAreIgnored(t *testing.T) {
	t.Parallel()
	w := startWalled(t)
	ofStream := func(subject string) bool {
		return strings.HasPrefix(subject, "mcp.0.") || strings.HasPrefix(subject, "$KV.")
	}
	w.listen(func(subject string) bool { return !ofStream(subject) })
	before := w.contents()
	created := map[string]string{} // where consumers deliver
	create := func(user, stream, target, group string, pull bool) {
		t.Helper()
		name := fmt.Sprintf("%s_%d", user, len(created))
		created[name] = target
		config := map[string]any{"name": name, "ack_policy": "none", "mem_storage": true}
		if !pull {
			config["deliver_subject"], config["deliver_group"] = target, group
		}
		api := "$JS.API.CONSUMER.CREATE." + stream + "." + name
		if stream == "MCP_0" {
			config["filter_subject"] = "mcp.0.victim.>"
			api += ".mcp.0.victim.>"
		}
		data := jsonOf(t, map[string]any{"stream_name": stream, "config": config})
		if !may(mayPublish, user, streams[stream]) {
			must.NoError(t, w.as[user].Publish(api, []byte(data)))
			return
		}
		answer, err := w.as[user].Request(api, []byte(data), waittest.Timeout)
		if err != nil {
			t.Fatalf("%s creates a consumer of %s: %v", user, stream, err)
		}
		var refused struct{ Error *jetstream.APIError }
		must.NoError(t, json.Unmarshal(answer.Data, &refused))
		if refused.Error != nil && refused.Error.ErrorCode != 10081 { // it would deliver to its own stream
			t.Errorf("%s creates a consumer of %s for %s: %v", user, stream, target, refused.Error)
		}
		if pull {
			must.NoError(t, w.as[user].PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+stream+"."+name, target, []byte("10")))
		}
		ctx := waittest.Context(t)
		for refused.Error == nil && !ofStream(target) { // until it has delivered
			select {
			case msg := <-w.heard[target]:
				if strings.HasPrefix(msg.Reply, "$JS.ACK."+stream+"."+name+".") {
					return
				}
			case <-ctx.Done():
				t.Fatalf("a consumer of %s does not deliver to %s %s", stream, target, group)
			}
		}
	}
	for _, user := range w.users {
		for stream := range streams {
			for target := range mayPublish {
				if !strings.HasSuffix(target, ">") {
					create(user, stream, target, "", false)
				}
			}
			for target, group := range answering {
				create(user, stream, target, "", true)
				if group != "" {
					create(user, stream, target, group, false)
				}
			}
		}
	}
	w.settle()
	for stream := range streams {
		s := must.Value(w.js.Stream(t.Context(), stream))(t)
		for name := range s.ConsumerNames(t.Context()).Name() {
			if user, _, ours := strings.Cut(name, "_"); ours && outside(user) {
				t.Errorf("%s has a consumer of %s that delivers to %s", user, stream, created[name])
			}
		}
	}
	if diff := gocmp.Diff(before, w.contents()); diff != "" {
		t.Errorf("the streams have changed: %s", diff)
	}
	if now := w.operate(t, "show"); !strings.Contains(now, "max-age                  1h\n") {
		t.Errorf("the log is set to\n%s", now)
	}
}
