package eventlog_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// silent is a log with three replicas, of whose requests of one kind some get no answer.
func silent(t *testing.T, request string) (*eventlog.Log, *natstest.Silence) {
	t.Helper()
	srv := natstest.StartCluster(t).Servers[0]
	silence := natstest.NewSilence(t, srv, request)
	settings := one()
	settings.Replicas = 3
	return create(t, srv, settings, nats.SetCustomDialer(&silence.Link)), silence
}

// What is asked while a partition changes its leader gets no answer. It is asked again.
func TestLook_Unanswered(t *testing.T) {
	t.Parallel()
	l, silence := silent(t, "STREAM.INFO.MCP_0 ")
	silence.Next(2) // the log may look by itself at the same time
	must.Value(l.Look(waittest.Context(t), 0))(t)
}

func TestEntries_Unanswered(t *testing.T) {
	t.Parallel()
	l, silence := silent(t, "STREAM.MSG.GET.MCP_0 ")
	sequence := publish(t, l, "s", "t", 1)
	silence.Next(1)
	if last, err := l.Last(waittest.Context(t), event.Subject{Session: "s", Stream: "t"}); err != nil || last != sequence {
		t.Errorf("the last one is %d, %v", last, err)
	}
	silence.Next(1)
	if e, err := l.At(waittest.Context(t), 0, sequence); err != nil || e.Sequence != sequence {
		t.Errorf("it is %+v, %v", e, err)
	}
}

// The answer to a change of a partition comes from its leader, and is lost with it. The change is made again.
func TestSetLimits_Unanswered(t *testing.T) {
	t.Parallel()
	l, silence := silent(t, "STREAM.UPDATE.MCP_0 ")
	settings := l.Settings()
	settings.MaxBytes = 1 << 30
	silence.Next(1)
	must.NoError(t, l.SetLimits(waittest.Context(t), 0, settings))
	if now := look(t, l).Limits.MaxBytes; now != 1<<30 {
		t.Errorf("the limit is %d", now)
	}
}

func TestSetReplicas_Unanswered(t *testing.T) {
	t.Parallel()
	l, silence := silent(t, "STREAM.INFO.KV_B ")
	must.Value(newJetStream(t, l).CreateKeyValue(waittest.Context(t), jetstream.KeyValueConfig{Bucket: "B"}))(t)
	silence.Next(1)
	must.NoError(t, l.SetReplicas(waittest.Context(t), "B", 3))
}
