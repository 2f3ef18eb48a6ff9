package standalone

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

func TestUpstream_HasABridge(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(data), "initialize") {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25"}}`)
	}))
	defer upstream.Close()
	r := start(t, filepath.Join(t.TempDir(), "data"), "--upstream="+upstream.URL, "--bridge-name=here")
	nc, err := nats.Connect(r.addrs["--nats-addr"], nats.Timeout(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var answer rpc.Answer
	waittest.Until(t, "the bridge answers", func() bool {
		answer, err = rpc.Call{Action: rpc.Open, Session: "s", Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)}.Do(t.Context(), nc)
		return err == nil
	})
	if answer.Status != http.StatusOK {
		t.Fatalf("initialize was answered %d %s", answer.Status, answer.Data)
	}
	if status, body := request(t, http.MethodGet, "http://"+r.addrs["--edge-addr"]+"/v1/sessions/s", ""); status != http.StatusOK || !strings.Contains(body, `"bridge":"here"`) {
		t.Errorf("the session is %d %s", status, body)
	}
	r.stop()
}
