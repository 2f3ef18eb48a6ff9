package e2e

import (
	"strings"
	"testing"
)

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
