package e2e

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"

	"rejoin/shared/waittest"
)

// The tests are in jsclient.test.mjs, for Node's own test runner. What only this
// process can do for them, they ask for over HTTP.
func TestJavaScriptClient_Node(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("these tests need Node: %v", err)
	}
	p := startProc(t, "--retry=100ms", "--heartbeat=100ms", "--ack-timeout=9s")
	orders := make(chan string)
	carriedOut := make(chan struct{})
	control := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case orders <- r.URL.Path:
			<-carriedOut
		case <-r.Context().Done():
		}
	}))
	defer control.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 2*waittest.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "jsclient.test.mjs")
	cmd.Env = append(os.Environ(), "EDGE="+p.api(), "CONTROL="+control.URL)
	ended := make(chan error, 1)
	var out []byte
	go func() {
		var err error
		out, err = cmd.CombinedOutput()
		ended <- err
	}()
	for {
		select {
		case order := <-orders:
			switch order {
			case "/kill":
				p.kill()
			case "/start":
				p.start()
			default:
				t.Errorf("the tests ask for %s", order)
			}
			carriedOut <- struct{}{}
		case err := <-ended:
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			return
		}
	}
}

// The types of the JavaScript client hold in a page, and in Node without the browser's types.
func TestJavaScriptClient_Types(t *testing.T) {
	t.Parallel()
	packages, node := installed(t, "types"), npm(t).node()
	for lib, types := range map[string][]string{
		"es2022,dom": {"--typeRoots", t.TempDir()}, "es2024": {"--typeRoots", packages.path("@types"), "--types", "node"},
	} {
		cmd := exec.CommandContext(t.Context(), node, append([]string{
			packages.path("typescript", "bin", "tsc"), "--strict", "--exactOptionalPropertyTypes",
			"--noEmit", "--skipDefaultLibCheck", "--target", "es2022", "--module", "nodenext", "--lib", lib, "testdata/types/page.mts",
		}, types...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("--lib %s: %v\n%s", lib, err, out)
		}
	}
}
