package e2e

import (
	"bytes"
	"os/exec"
	"path"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// A log of an earlier layout is left as it is, and each service says what to do.
func TestVersion_ServicesRefuseALogOfVersion1(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	js, err := jetstream.New(srv.Connect(), jetstream.WithDefaultTimeout(waittest.Timeout))
	if err != nil {
		t.Fatal(err)
	}
	config := jetstream.StreamConfig{Name: "MCP_0", Subjects: []string{"mcp.0.*.*"}, Metadata: map[string]string{"rejoin.version": "1", "rejoin.partitions": "1", "rejoin.birth": "x"}}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "mcp.0.old.main", []byte(numbered(1))); err != nil {
		t.Fatal(err)
	}
	const says = `: the stored log does not match: it has version "1" and this program reads version "3"; use the program that wrote it, or begin another log`
	refuses := func(pkg, want string, args ...string) {
		t.Helper()
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), built(t, pkg), append(args, "--nats-url="+srv.URL())...) //nolint:gosec // the program under test
		cmd.Stderr = &out
		if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(out.String(), want+"\n") {
			t.Errorf("%s ended with %v and says %q, want %q", path.Base(pkg), err, out.String(), want)
		}
	}
	for service, flag := range map[string]string{"janitor": "--janitor-addr", "ingest": "--ingest-addr", "sse-edge": "--edge-addr"} {
		refuses("rejoin/services/"+service+"/cmd/"+service, service+": "+srv.URL()+says+"; --nats-url chooses another server", flag+"=127.0.0.1:0", "--admin-addr=127.0.0.1:0")
	}
	refuses(rejoinPackage, says, "log", "show")

	var names []string
	for info := range js.ListStreams(t.Context()).Info() {
		names = append(names, info.Config.Name)
		if info.State.Msgs != 1 || info.Config.Subjects[0] != config.Subjects[0] || info.Config.Metadata["rejoin.version"] != "1" {
			t.Errorf("%s has become %+v with %d messages", info.Config.Name, info.Config, info.State.Msgs)
		}
	}
	if len(names) != 1 {
		t.Errorf("the streams are %v", names)
	}
}
