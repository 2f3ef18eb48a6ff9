package eventlog_test

import (
	"log/slog"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// A cluster that is being formed does not answer; the question is asked again, also by a caller with
// a deadline of its own.
func TestWaitForJetStream_NoAnswer(t *testing.T) {
	t.Parallel()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true})
	must.NoError(t, err)
	srv.Start()
	defer srv.Shutdown()
	nc := must.Value(nats.Connect("", nats.InProcessServer(srv)))(t)
	defer nc.Close()
	asked := 0
	must.Value(nc.Subscribe("$JS.API.INFO", func(m *nats.Msg) {
		if asked++; asked > 1 {
			_ = m.Respond([]byte(`{"type":"io.nats.jetstream.api.v1.account_info_response"}`)) // or it is asked again
		}
	}))(t)
	must.NoError(t, eventlog.WaitForJetStream(waittest.Context(t), nc, slog.New(slog.DiscardHandler)))
}
