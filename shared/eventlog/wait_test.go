package eventlog_test

import (
	"errors"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// A cluster that is being formed does not answer; a caller with a longer deadline asks again.
func TestCreate_NoAnswer(t *testing.T) {
	t.Parallel()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true})
	must.NoError(t, err)
	srv.Start()
	defer srv.Shutdown()
	nc := must.Value(nats.Connect("", nats.InProcessServer(srv)))(t)
	defer nc.Close()
	create := func() error {
		_, err := eventlog.Create(waittest.Context(t), nc, one(), quiet(t))
		return err
	}
	if err := create(); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("without JetStream: %v", err)
	}
	must.Value(nc.SubscribeSync("$JS.API.STREAM.INFO.MCP_0"))(t)
	if err := create(); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("without an answer: %v", err)
	}
}
