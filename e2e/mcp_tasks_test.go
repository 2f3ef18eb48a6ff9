package e2e

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mcprev "rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// taskScenarios are the suite's scenarios for the tasks extension, and how many checks each has, by the policy of
// the tool failing_job: one wants clients without the extension refused, the others a task, for which they need
// not wait. tasks-status-notifications has none yet.
var taskScenarios = map[string]map[string]int{
	"always": {
		"tasks-lifecycle":              9,
		"tasks-capability-negotiation": 5,
		"tasks-wire-fields":            4,
		"tasks-request-state-removal":  3,
		"tasks-mrtr-input":             4,
		"tasks-request-headers":        5,
		"tasks-dispatch-and-envelope":  9,
		"tasks-mrtr-composition":       2,
	},
	"required": {"tasks-required-task-error": 3},
}

// taskFlags are those of a bridge before taskserver. Time decides about test_tool_with_task alone, which
// has to ask first and to become a task later: the suite takes 10 s for the response to either request
// and for the task, so the limit leaves 5 s for each on both of its sides.
var taskFlags = []string{
	"--task-after=5s", "--task-tools=greet=never", "--task-tools=slow_compute=always", "--task-tools=protocol_error_job=always",
	"--task-tools=confirm_delete=always", "--task-tools=multi_input=always", "--task-tools=test_tool_with_task=required",
}

// withScenarios returns the folder of a suite whose requirements name scenarios, which the suite's own do not: one
// process runs them all, and not one for each.
func withScenarios(t *testing.T, suite string, scenarios map[string]int) string {
	t.Helper()
	packages, dir := npm(t), t.TempDir()
	names := strings.Join(slices.Collect(maps.Keys(scenarios)), ", ")
	must.NoError(t, errors.Join(os.Symlink(packages.dir, filepath.Join(dir, "node_modules")), os.Symlink(packages.path(suite, "dist"), filepath.Join(dir, "dist")),
		os.Mkdir(filepath.Join(dir, "requirements"), 0o700), os.WriteFile(filepath.Join(dir, "requirements", mcprev.Stateless+".yaml"), []byte("server: ["+names+"]"), 0o600)))
	return dir
}

// Calls at servers that have no tasks become some: every check passes, before servers of either era.
func TestConformance_Tasks(t *testing.T) {
	t.Parallel()
	for name, stateless := range map[string]string{"2025-11-25": "-stateless=false", "2026-07-28": "-stateless"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, passed, all := startServer(t, built(t, "rejoin/e2e/taskserver"), stateless), 0, 0
			for policy, scenarios := range taskScenarios {
				p := startProc(t, append([]string{"--upstream=" + server, "--task-tools=failing_job=" + policy}, taskFlags...)...)
				got := conformance(t, p.api()+"/mcp", withScenarios(t, "conformance-0.2", scenarios), []string{"--requirements", mcprev.Stateless})
				for scenario, n := range scenarios {
					checks := checks{scenario: got[scenario]}
					checks.failNowhere(t)
					if checks.passed() != n {
						t.Errorf("%s: %d checks passed, not %d", scenario, checks.passed(), n)
					}
					passed, all = passed+checks.passed(), all+n
				}
			}
			t.Logf("conformance tasks before a server of %s without tasks: %d of %d checks passed through Rejoin", name, passed, all)
		})
	}
}

// The client of the extension's own package waits for a task while its connections are cut, also in the
// middle of a response, and its edge is killed. The tool runs once.
func TestMCP_TaskOutlivesConnectionsAndEdge(t *testing.T) {
	t.Parallel()
	s := startMCP(t, "--task-tools=count=always")
	edge, another := s.edge(t, anyPort), s.edge(t, anyPort)
	way := newCutter(t, edge.host(), another.host())
	packages := npm(t)
	args := must.Value(json.Marshal(counting{Call: "task", Steps: 1}))(t)
	call := &mcpCall{t: t, silent: true}
	call.run(packages.node(), abs(t, "testdata/mcp/tasks.mjs"), packages.dir, way.mcp(), "count", string(args))
	asked := func() {
		t.Helper()
		const working = `"resultType":"complete","taskId":`
		before := way.count(working)
		waittest.Until(t, "the client asks for the task", func() bool { return way.count(working) > before+1 })
	}
	asked()
	for _, happens := range []func(){way.cut, func() { way.cutAfter(20) }, edge.kill} {
		happens()
		asked()
	}
	s.server.allow("task", 2)
	call.finish("task", 1)
	s.server.ranOnce(t, "task")
}
