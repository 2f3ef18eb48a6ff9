package eventlog_test

import (
	"log/slog"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/waittest"
)

// A cluster that is being formed does not answer; the question is asked again, also by a caller with
// a deadline of its own.
func TestWaitForJetStream_NoAnswer(t *testing.T) {
	t.Parallel()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	defer srv.Shutdown()
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	asked := 0
	if _, err := nc.Subscribe("$JS.API.INFO", func(m *nats.Msg) {
		if asked++; asked > 1 {
			_ = m.Respond([]byte(`{"type":"io.nats.jetstream.api.v1.account_info_response"}`)) // or it is asked again
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := eventlog.WaitForJetStream(waittest.Context(t), nc, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
}
