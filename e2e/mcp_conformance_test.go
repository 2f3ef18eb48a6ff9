package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// The official suite, against a server of the Go SDK alone and through Rejoin: no check
// that the server passes may be lost.
func TestConformance(t *testing.T) {
	t.Parallel()
	// A server without sessions cannot ask its client anything, and fails four checks.
	alone := startEverythingServer(t, "-stateless=false")
	p := startProc(t, "--upstream="+alone)
	const passed = 44
	args := []string{"--suite", "all"}
	want := conformance(t, alone, official, args)
	got := conformanceAs(t, want, nil, p.api()+"/mcp", official, args)
	if n := want.passed(); n != passed {
		t.Errorf("the server alone passes %d checks, not %d", n, passed)
	}
	got.loseNothing(t, want, nil)
	got.failNowhere(t)
	t.Logf("conformance: %d of %d checks passed through Rejoin, %d by the server alone", got.passed(), passed, want.passed())
}

// unpassable are the scored checks of revision 2026-07-28 that no translation can pass before a server
// of earlier ones, and why.
var unpassable = map[string]string{
	"input-required-result-basic-elicitation":   "the suite wants the name that a server of the revision gives a question; a request of earlier revisions has none",
	"input-required-result-ignore-extra-params": "the same: it answers a question of that name",
	"input-required-result-multi-round":         "go-sdk 1.8 calls such a tool a second time, and no third, for clients of earlier revisions",
}

// Before a server of both eras no check may be lost, and before one of the earlier alone, which the
// suite for 2026-07-28 fails, all but unpassable pass.
func TestConformance_WithoutSessions(t *testing.T) {
	t.Parallel()
	both, earlier := startEverythingServer(t, "-stateless"), startEverythingServer(t, "-stateless=false")
	args := []string{"--requirements", "2026-07-28"}
	want := sync.OnceValue(func() checks { return conformance(t, both, "conformance-0.2", args) })
	for name, tt := range map[string]struct {
		upstream string
		least    int
		lost     func(scenario string) bool // whether a check may fail
	}{
		"both": {both, 165, nil},
		"earlier": {earlier, 150, func(scenario string) bool {
			return unpassable[scenario] != "" || strings.HasPrefix(scenario, "http-custom-header")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProc(t, "--upstream="+tt.upstream)
			want := want()
			got := conformanceAs(t, want, tt.lost, p.api()+"/mcp", "conformance-0.2", args)
			if n := want.passed(); n != 165 {
				t.Errorf("the server of both eras alone passes %d checks, not 165", n)
			}
			got.loseNothing(t, want, tt.lost)
			if got.passed() < tt.least {
				t.Errorf("%d checks passed, not %d", got.passed(), tt.least)
			}
			t.Logf("conformance 2026-07-28 before a server of %s: %d checks passed through Rejoin, %d by the server of both eras alone", name, got.passed(), want.passed())
		})
	}
	t.Run("2025-11-25", func(t *testing.T) {
		t.Parallel()
		p := startProc(t, "--upstream="+earlier)
		got := conformance(t, p.api()+"/mcp", "conformance-0.2", []string{"--requirements", "2025-11-25"})
		got.failNowhere(t)
		t.Logf("conformance 2025-11-25, suite 0.2: %d checks passed through Rejoin, none failed", got.passed())
	})
}

// checks are the results of a run of the suite, by scenario and check.
type checks map[string]map[string]check

type check struct {
	passed, failed int
	message        string
}

func (c checks) passed() (n int) {
	for _, scenario := range c {
		for _, check := range scenario {
			n += check.passed
		}
	}
	return n
}

// loseNothing expects as much as want has, but for scenarios that lost reports; nil: for none.
func (c checks) loseNothing(t *testing.T, want checks, lost func(scenario string) bool) {
	t.Helper()
	for scenario, checks := range want {
		for id, n := range checks {
			if m := c[scenario][id]; (m.passed < n.passed || m.failed > n.failed) && (lost == nil || !lost(scenario)) {
				t.Errorf("%s, %s: alone %+v, through Rejoin %+v", scenario, id, n, m)
			}
		}
	}
}

// failNowhere expects no check that failed.
func (c checks) failNowhere(t *testing.T) {
	t.Helper()
	for scenario, checks := range c {
		for id, n := range checks {
			if n.failed > 0 {
				t.Errorf("%s, %s failed: %s", scenario, id, n.message)
			}
		}
	}
}

// conformanceAs runs the suite, and once more for the scenarios that warn where want passes: the suite waits 1.5 s for
// a notification that should come, which on a busy machine is too short now and then. A check that fails is not
// repeated, nor one that may be lost.
func conformanceAs(t *testing.T, want checks, lost func(scenario string) bool, url, suite string, args []string) checks {
	t.Helper()
	got := conformance(t, url, suite, args)
	warns := slices.DeleteFunc(slices.Sorted(maps.Keys(want)), func(scenario string) bool {
		if lost != nil && lost(scenario) {
			return true
		}
		for id, n := range want[scenario] {
			if m := got[scenario][id]; m.failed == 0 && m.passed < n.passed {
				return false
			}
		}
		return true
	})
	if len(warns) == 0 {
		return got
	}
	t.Logf("%s run again", warns)
	again := conformance(t, url, suite, args)
	for _, scenario := range warns {
		got[scenario] = again[scenario]
	}
	return got
}

// official is the suite's newest release, and conformance-0.2 the one before the next. A suite may also be a folder
// that is laid out as these.
const official = "@modelcontextprotocol/conformance"

// timestamp is the suffix that the suite gives a scenario's name.
const timestamp = "-2006-01-02T15-04-05-000Z"

func conformance(t *testing.T, url, suite string, args []string) checks {
	t.Helper()
	packages, dir := npm(t), t.TempDir()
	program := filepath.Join(suite, "dist", "index.js")
	if !filepath.IsAbs(suite) {
		program = packages.path(program)
	}
	args = append([]string{"--preserve-symlinks-main", program, "server", "--url", url, "--output-dir", dir}, args...)
	out, err := exec.CommandContext(t.Context(), packages.node(), args...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && (suite == official || !errors.As(err, &exit)) { // it fails for checks that are not scored, too
		t.Errorf("the suite ended: %v\n%s", err, out)
	}
	files := must.Value(filepath.Glob(filepath.Join(dir, "server-*", "checks.json")))(t)
	all := checks{}
	for _, file := range files {
		data := must.Value(os.ReadFile(file))(t)
		var list []struct{ ID, Status, ErrorMessage string }
		if err := json.Unmarshal(data, &list); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		name := filepath.Base(filepath.Dir(file))
		scenario := map[string]check{}
		for _, c := range list {
			n := scenario[c.ID]
			switch c.Status {
			case "SUCCESS":
				n.passed++
			case "FAILURE":
				n.failed, n.message = n.failed+1, c.ErrorMessage
			}
			scenario[c.ID] = n
		}
		all[name[len("server-"):len(name)-len(timestamp)]] = scenario
	}
	return all
}

// startEverythingServer starts the Go SDK's server with all features that the suite asks
// for. It ends with the test.
func startEverythingServer(t *testing.T, eras string) (url string) {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", natstest.FreePort(t))
	launch(t, exec.Command(built(t, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server"), "-http", addr, eras)) //nolint:noctx // launch ends it
	waittest.Until(t, "the server listens", func() bool { return listens(addr) })
	return "http://" + addr
}

// startServer starts an MCP server that prints its URL, and returns that.
func startServer(t *testing.T, program string, args ...string) (url string) {
	t.Helper()
	cmd := exec.Command(program, args...) //nolint:noctx // launch ends it
	stdout := must.Value(cmd.StdoutPipe())(t)
	launch(t, cmd)
	return strings.TrimSpace(must.Value(bufio.NewReader(stdout).ReadString('\n'))(t))
}
