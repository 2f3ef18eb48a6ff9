package e2e

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"rejoin/shared/waittest"
)

// taskScenarios are the suite's scenarios for the tasks extension, and how many checks each has: no
// requirements name them. tasks-status-notifications has none yet.
var taskScenarios = map[string]int{
	"tasks-lifecycle":              9,
	"tasks-capability-negotiation": 5,
	"tasks-wire-fields":            4,
	"tasks-request-state-removal":  3,
	"tasks-mrtr-input":             4,
	"tasks-request-headers":        5,
	"tasks-dispatch-and-envelope":  9,
	"tasks-required-task-error":    3,
	"tasks-mrtr-composition":       2,
}

// taskFlags are those of a bridge before taskserver. Time decides about test_tool_with_task alone, which
// has to ask first and to become a task later: the suite takes 10 s for the response to either request
// and for the task, so the limit leaves 5 s for each on both of its sides.
var taskFlags = []string{
	"--task-after=5s", "--task-tools=greet=never", "--task-tools=slow_compute=always", "--task-tools=protocol_error_job=always",
	"--task-tools=confirm_delete=always", "--task-tools=multi_input=always", "--task-tools=test_tool_with_task=required",
}

// failingJob returns the policy of failing_job: a scenario wants clients without the extension refused,
// the others a task, for which they need not wait.
func failingJob(scenario string) string {
	if scenario == "tasks-required-task-error" {
		return "--task-tools=failing_job=required"
	}
	return "--task-tools=failing_job=always"
}

// Calls at servers that have no tasks become some: every check passes, before servers of either era.
func TestConformance_Tasks(t *testing.T) {
	t.Parallel()
	for name, stateless := range map[string]string{"2025-11-25": "-stateless=false", "2026-07-28": "-stateless"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, procs := startTaskServer(t, stateless), map[string]*proc{}
			passed, all := 0, 0
			for scenario, n := range taskScenarios {
				all += n
				policy := failingJob(scenario)
				p := procs[policy]
				if p == nil {
					p = startProc(t, append([]string{"--upstream=" + server, policy}, taskFlags...)...)
					procs[policy] = p
				}
				got := conformance(t, p.api()+"/mcp", "conformance-0.2", []string{"--spec-version", "2026-07-28", "--force", "--scenario", scenario})
				for id, check := range got[scenario] {
					if check.failed > 0 {
						t.Errorf("%s, %s failed: %s", scenario, id, check.message)
					}
				}
				if got.passed() != n {
					t.Errorf("%s: %d checks passed, not %d", scenario, got.passed(), n)
				}
				passed += got.passed()
			}
			t.Logf("conformance tasks before a server of %s without tasks: %d of %d checks passed through Rejoin", name, passed, all)
		})
	}
}

// startTaskServer starts a server of the suite's tools for tasks. It ends with the test.
func startTaskServer(t *testing.T, eras string) (url string) {
	t.Helper()
	cmd := exec.Command(built(t, "rejoin/e2e/taskserver"), eras) //nolint:noctx // it is killed by the test's cleanup
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	startServer(t, cmd)
	url, err = bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(url)
}

// The client of the extension's own package waits for a task while its connections are cut, also in the
// middle of a response, and its edge is killed. The tool runs once.
func TestMCP_TaskOutlivesConnectionsAndEdge(t *testing.T) {
	t.Parallel()
	s := startMCP(t, "--task-tools=count=always")
	edge, another := s.edge(t, anyPort), s.edge(t, anyPort)
	way := newCutter(t, edge.host(), another.host())
	packages := npm(t)
	args, err := json.Marshal(counting{Call: "task", Steps: 1})
	if err != nil {
		t.Fatal(err)
	}
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
	if n := s.server.runs("task"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}
