package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"rejoin/shared/must"
)

func parseFlags(t *testing.T, args ...string) (Config, error) {
	t.Helper()
	var cfg Config
	parser, err := kong.New(&cfg)
	must.NoError(t, err)
	_, err = parser.Parse(args)
	return cfg, err
}

func TestFlags(t *testing.T) {
	for _, bad := range []string{
		"--upstream=ftp://x", "--upstream=x", "--upstream=http://", "--upstream-command=a | b", "--upstream-command='", "--upstream-header=X",
		"--upstream-header=Mcp-Session-Id: 1", "--upstream-header=X Y: 1", "--forward-header=Host", "--forward-header=last-event-id", "--forward-header=authorization", "--forward-header=Cookie",
		"--accept-after=0s", "--open-timeout=0s", "--cancel-grace=5s", "--max-calls=0", "--call-timeout=soon",
	} {
		args := []string{"--upstream=http://x", bad} // the last of two counts
		if strings.HasPrefix(bad, "--upstream-command") {
			args = args[1:]
		}
		if _, err := parseFlags(t, args...); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
	// Keys of MCP servers stand in URLs and in headers, and errors in logs.
	for _, bad := range []string{"--upstream=x://a:sesame@x/sesame?key=sesame", "--upstream=http://%x/sesame", "--upstream-header=Authorization=Bearer sesame", "--upstream-header=X: sesame\x01"} {
		if _, err := parseFlags(t, "--upstream=http://x", bad); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s is answered %v", bad, err)
		}
	}
	if _, err := parseFlags(t, "--upstream=http://x", "--upstream-command=x"); err == nil {
		t.Error("two upstreams are taken")
	}
	if _, err := parseFlags(t, "--upstream-command=x", "--max-processes=0"); err == nil {
		t.Error("no processes are taken")
	}
	cfg, err := parseFlags(t, "--upstream-command=npx -y 'a b'", "--call-timeout=-1", "--upstream-header=A: b, c", "--upstream-header=A: d")
	if err != nil || cfg.CallTimeout != -1 {
		t.Fatal(cfg, err)
	}
	if argv, err := cfg.argv(); err != nil || !slices.Equal(argv, []string{"npx", "-y", "a b"}) {
		t.Errorf("the command is %q, %v", argv, err)
	}
	if h, err := cfg.Header(); err != nil || !slices.Equal(h["A"], []string{"b, c", "d"}) {
		t.Errorf("the header is %v, %v", h, err)
	}
	if cfg.ForwardHeader[0] != "Accept-Language" || slices.Contains(cfg.ForwardHeader, "Authorization") {
		t.Errorf("these are forwarded: %v", cfg.ForwardHeader)
	}
}
