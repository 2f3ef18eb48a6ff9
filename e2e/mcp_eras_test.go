package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"rejoin/shared/must"
)

// did is the output of testdata/mcp/eras.mjs.
type did struct {
	Server, Version, Tools, Greet, Count string
	Ask                                  []string
	Progress                             []int
	Heard                                bool
}

// Clients of each era before servers of each: they list and call tools, are asked while they wait for
// a result, and receive progress and changes.
func TestEras(t *testing.T) {
	t.Parallel()
	packages := npm(t)
	for _, kind := range []string{"stateless", "both", "sessions", "standalone", "stdio"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var p *proc
			var change []string
			clients := []string{"pinned", "auto", "earlier", "v1"}
			if kind == "stdio" {
				clients = []string{"pinned", "v1"} // each has processes of its own
				p = startProc(t, "--upstream-command="+strings.Join([]string{packages.node(), abs(t, "testdata/mcp/server.mjs"), packages.dir, kind}, " "))
			} else {
				url := startServer(t, packages.node(), abs(t, "testdata/mcp/server.mjs"), packages.dir, kind)
				p, change = startProc(t, "--upstream="+url), []string{url + "/change"}
			}
			args := append([]string{abs(t, "testdata/mcp/eras.mjs"), packages.dir, p.api() + "/mcp", strings.Join(clients, ",")}, change...)
			out, err := exec.CommandContext(t.Context(), packages.node(), args...).CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			if err != nil || len(lines) != len(clients) {
				t.Fatalf("the clients: %v\n%s", err, out)
			}
			for i, client := range clients {
				var got did
				if err := json.Unmarshal([]byte(lines[i]), &got); err != nil {
					t.Errorf("the client %s: %s", client, lines[i])
					continue
				}
				want := did{
					Server: kind, Tools: "greet,ask,count,executed", Greet: "hello you", Count: "counted",
					Ask: []string{"1 is name 1", "2 is name 2", "3 is name 3"}, Progress: []int{1, 2, 3}, Heard: change != nil,
					Version: map[string]string{"pinned": "2026-07-28", "auto": "2026-07-28", "earlier": "2025-11-25"}[client],
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("the client %s: %s", client, diff)
				}
			}
		})
	}
}

func abs(t *testing.T, path string) string {
	t.Helper()
	return must.Value(filepath.Abs(path))(t)
}

// A server of others that speaks on its standard input and output, behind the bridge.
func TestMCP_StdioServer(t *testing.T) {
	t.Parallel()
	packages := npm(t)
	p := startProc(t, "--upstream-command="+packages.node()+" "+packages.path("@modelcontextprotocol", "server-everything", "dist", "index.js")+" stdio")
	call := typeScript(t, "@modelcontextprotocol/client", p.api()+"/mcp", "trigger-long-running-operation", map[string]any{"duration": 0.5, "steps": 5})
	for step := 1; step <= 5; step++ {
		call.waitFor(step)
	}
	call.wait("it is completed", func(l told) bool { return strings.Contains(l.Result, "completed") })
	call.end()
}
