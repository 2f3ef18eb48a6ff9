package bridge

import (
	"errors"
	"strings"
	"testing"

	"rejoin/services/bridge/config"
	"rejoin/shared/daemon"
)

func TestRun_NoUpstream(t *testing.T) {
	if err := Run(t.Context(), ProgramConfig{}, daemon.NewEnv(nil)); !errors.Is(err, ErrNoUpstream) {
		t.Errorf("it runs without: %v", err)
	}
}

func TestRun_InvalidLimit(t *testing.T) {
	cfg := ProgramConfig{Bridge: config.Config{Upstream: "http://127.0.0.1:1/mcp"}}
	cfg.Sessions.MaxSessions = -5
	if err := Run(t.Context(), cfg, daemon.NewEnv(nil)); err == nil || !strings.Contains(err.Error(), "--max-sessions") {
		t.Errorf("it runs with a limit of -5: %v", err)
	}
}
