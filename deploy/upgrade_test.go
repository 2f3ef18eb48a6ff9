package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"rejoin/shared/must"
)

// An upgrade of a cluster ends at the first container that does not become healthy.
func TestReadme_UpgradeEndsAtAFailure(t *testing.T) {
	t.Parallel()
	_, block, _ := strings.Cut(read(t, "README.md"), "**Rolling upgrade.**")
	_, block, _ = strings.Cut(block, "```sh\n")
	block, _, found := strings.Cut(block, "```")
	if !found || !strings.Contains(block, "--force-recreate") { // or NATS keeps its old configuration
		t.Fatalf("the block is %q", block)
	}
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	docker := "#!/bin/sh\necho \"$*\" >>" + asked + "\n! expr \"$*\" : '.*nats-1' >/dev/null\n"
	must.NoError(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(docker), 0o700)) //nolint:gosec // a program
	cmd := exec.CommandContext(t.Context(), "bash", "-c", block)                       //nolint:gosec // of the document
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := read(t, asked)
	// NATS does not start with a configuration that has a user without a key.
	if before, _, found := strings.Cut(got, "nats-1"); !found || !strings.Contains(before, "credentials") || strings.Contains(got, "nats-2") {
		t.Errorf("docker was called with\n%s", got)
	}
}

// The proxy may have as many connections as its memory allows, at 30 KB each with TLS.
func TestProxy_ConnectionsAndThreadsFitIntoLimits(t *testing.T) {
	t.Parallel()
	number := func(file, pattern string) int {
		t.Helper()
		found := regexp.MustCompile(pattern).FindStringSubmatch(read(t, file))
		if found == nil {
			t.Fatalf("%s has no %s", file, pattern)
		}
		return must.Value(strconv.Atoi(found[1]))(t)
	}
	most := number("proxy/haproxy.cfg", `fd-hard-limit (\d+)`) / 2
	if each := number("proxy/haproxy.cfg", `presetenv REJOIN_PROXY_ADDRESS_CONNECTIONS (\d+)`); each >= most {
		t.Errorf("one address may have %d of %d connections", each, most)
	}
	// With fewer it accepts connections on many processors and serves none: 64 threads, the master, a health check.
	if most := number("compose.yaml", `(?s)stop_signal: SIGUSR1.*?pids_limit: (\d+)`); most < 64+2 {
		t.Errorf("the proxy may have %d threads and processes", most)
	}
	for file, pattern := range map[string]string{
		"compose.yaml":          `(?s)stop_signal: SIGUSR1.*?mem_limit: (\d+)g`,
		"kubernetes/proxy.yaml": `limits: { memory: (\d+)Gi }`,
	} {
		if limit := number(file, pattern) << 30; most*30_000 > limit*9/10 {
			t.Errorf("%s gives %d bytes to %d connections", file, limit, most)
		}
	}
}
