package logset

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

// A request that is lost, as with the janitor that had it, is made again.
func TestAsk_RequestIsLost(t *testing.T) {
	srv := natstest.Start(t)
	janitor, asker := srv.Connect(), srv.Connect()
	asked := 0
	must.Value(janitor.Subscribe(Subject(0), func(msg *nats.Msg) {
		if asked++; asked > 1 { // each one: the answer to an earlier request may arrive too late
			must.NoError(t, msg.Respond([]byte(`{"error":"no"}`)))
		}
	}))(t)
	must.NoError(t, janitor.Flush())
	if err := askEach(waittest.Context(t), asker, Subject(0), nil, 50*time.Millisecond); !errors.Is(err, ErrRefused) {
		t.Errorf("the answer is %v", err)
	}
}
