package standalone

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"rejoin/shared/auth/authtest"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// guarded are the flags for access control.
func guarded(t *testing.T) []string {
	cfg := authtest.Config(t)
	return []string{"--auth=jwt", "--jwt-secret-file=" + cfg.SecretFile, "--jwt-audience=" + cfg.Audience}
}

// With access control only the program reaches the embedded server, unless it listens.
func TestNATS_NotAsked(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	r := start(t, data, append(guarded(t), "--nats-addr=")...)
	if strings.Contains(r.log.String(), "nats listens") {
		t.Errorf("it listens\n%s", r.log)
	}
	if _, err := os.Stat(filepath.Join(data, keyFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a key without a use: %v", err)
	}
	r.stop()
}

func TestNATS_AccessControl(t *testing.T) {
	t.Parallel()
	jwt := guarded(t)
	data := filepath.Join(t.TempDir(), "data")
	key := filepath.Join(data, keyFile)
	for range 2 { // the key stays
		r := start(t, data, jwt...)
		addr := r.addrs["--nats-addr"]
		if _, err := nats.Connect(addr, nats.Timeout(waittest.Timeout)); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("somebody without a key: %v", err)
		}
		if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("the key is %v, %v", info, err)
		}
		option := must.Value(nats.NkeyOptionFromSeed(key))(t)
		nc := must.Value(nats.Connect(addr, option, nats.Timeout(waittest.Timeout)))(t)
		nc.Close()
		out, err := exec.CommandContext(t.Context(), binary, "log", "show", "--nats-url=nats://"+addr, "--nats-nkey="+key).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "partitions") {
			t.Errorf("rejoin log show: %v\n%s", err, out)
		}
		r.stop()
	}
}

// A bridge whose name another bridge has taken disconnects from NATS, which keeps running: it must not receive the
// other one's requests.
func TestNATS_BridgeIsReplaced(t *testing.T) {
	t.Parallel()
	r := start(t, filepath.Join(t.TempDir(), "data"), "--upstream=http://127.0.0.1:1", "--bridge-name=b")
	nc := must.Value(nats.Connect(r.addrs["--nats-addr"], nats.Timeout(waittest.Timeout)))(t)
	defer nc.Close()
	must.Value(nc.Request("$KV."+rpc.CallsBucket+".=bridge.b", []byte("other"), waittest.Timeout))(t)
	must.NoError(t, nc.Publish("mcp.rpc.b.b", []byte("other")))
	waittest.Until(t, "the bridge has left NATS", func() bool {
		_, metrics := request(t, http.MethodGet, "http://"+r.addrs["--admin-addr"]+"/metrics", "")
		return strings.Contains(metrics, "rejoin_bridge_nats_connected 0")
	})
	r.stop()
}
