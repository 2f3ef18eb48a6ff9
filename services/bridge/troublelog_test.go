package bridge

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"rejoin/services/bridge/host"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// logLines are the lines that a bridge logs.
type logLines struct{ waittest.Buffer }

func (l *logLines) count(parts ...string) (n int) {
lines:
	for line := range strings.Lines(l.String()) {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue lines
			}
		}
		n++
	}
	return n
}

// newLogged is newSystem with the log lines of the bridges.
func newLogged(t testing.TB, settings eventlog.Settings) (*system, *logLines) {
	t.Helper()
	s, l := newSystem(t, settings), &logLines{}
	s.log = slog.New(slog.NewTextHandler(l, nil))
	return s, l
}

func TestTrouble_UnreachableServer(t *testing.T) {
	unused := httptest.NewServer(http.NotFoundHandler())
	unused.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	defer secure.Close()
	for name, tt := range map[string]struct{ url, why string }{
		"down":                    {unused.URL, "connection refused"},
		"self-signed certificate": {secure.URL, "certificate signed by unknown authority"},
		"no such host":            {"http://rejoin.invalid/mcp", "rejoin.invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			s, log := newLogged(t, eventlog.Settings{})
			s.start(t, testConfig(strings.Replace(tt.url, "://", "://user:sesame@", 1)+"/sesame?key=sesame"))
			waittest.Until(t, "it is in the log", func() bool {
				return log.count("level=WARN", "the MCP server cannot be reached", tt.why) == 1
			})
			for range 3 { // it is known
				wantStatus(t, s.opening(t), http.StatusBadGateway)
			}
			log.want(t, 1, "cannot be reached")
			log.want(t, 0, "sesame") // a key may stand anywhere in the URL
		})
	}
}

// The server starts after the bridge.
func TestTrouble_ServerIsReachedLater(t *testing.T) {
	s, log := newLogged(t, eventlog.Settings{})
	var up atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusBadRequest)
	}))
	defer server.Close()
	s.start(t, testConfig(server.URL))
	waittest.Until(t, "it cannot be reached", func() bool { return log.count("level=WARN", "the MCP server cannot be reached") == 1 })
	up.Store(true)
	waittest.Until(t, "it can be reached", func() bool {
		wantStatus(t, s.opening(t), http.StatusBadRequest)
		return log.count("level=INFO", "the MCP server can be reached") > 0
	})
	wantStatus(t, s.opening(t), http.StatusBadRequest)
	for _, line := range []string{"the MCP server can be reached", "the revision of the MCP server is known"} {
		log.want(t, 1, "level=INFO", line)
	}
}

func TestTrouble_NoSuchProgram(t *testing.T) {
	s, log := newLogged(t, eventlog.Settings{})
	cfg, program := stdioConfig(t), filepath.Join(t.TempDir(), "server")
	cfg.UpstreamCommand = program + " " + stdioMode
	s.start(t, cfg)
	waittest.Until(t, "it is in the log", func() bool { return log.count("level=WARN", "the MCP server cannot be started", program) == 1 })
	must.NoError(t, os.Symlink(os.Args[0], program))
	s.open(t)
	log.want(t, 1, "level=INFO", "the MCP server can be reached", program)
}

func TestTrouble_ServerRefuses(t *testing.T) {
	s, log := newLogged(t, eventlog.Settings{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	s.start(t, testConfig(server.URL))
	waittest.Until(t, "it was looked for", func() bool { return log.count("level=INFO", "the MCP server can be reached", "status=200") == 1 })
	for range 2 {
		wantStatus(t, s.opening(t), http.StatusUnauthorized)
	}
	log.want(t, 1, "level=WARN", "the MCP server refuses requests", "status=401", "times=1")
}

// Each client may begin as many sessions as it likes: it does not decide how large the log becomes.
func TestTrouble_SessionsAreNotMade(t *testing.T) {
	s, log := newLogged(t, eventlog.Settings{})
	s.start(t, testConfig(newServer(t).URL))
	taken := rpc.Ask{Action: rpc.Open, Session: s.open(t), Data: []byte(initialize)}
	for range 3 {
		wantStatus(t, s.do(t, taken), http.StatusServiceUnavailable)
	}
	log.want(t, 1, "level=WARN", "a session is not made", "times=1")
}

func TestTrouble_TooManyProcesses(t *testing.T) {
	s, log := newLogged(t, eventlog.Settings{})
	cfg := stdioConfig(t)
	cfg.MaxProcesses = 1
	s.start(t, cfg)
	s.open(t)
	for range 2 {
		wantStatus(t, s.opening(t), http.StatusServiceUnavailable)
	}
	log.want(t, 1, "level=WARN", "--max-processes", "processes=1")
}

func TestTrouble_ServerOfLaterRevision(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusOK} {
		s, log := newLogged(t, eventlog.Settings{})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":0,"error":{"code":-32022,"message":"x","data":{"supported":["2026-07-28"],"requested":"2025-11-25"}}}`))
			}
		}))
		s.start(t, testConfig(server.URL))
		if a := s.opening(t); a.Status != http.StatusBadGateway || bytes.Contains(a.Data, []byte("supported")) || !bytes.Contains(a.Data, []byte("revisions")) {
			t.Errorf("%d was answered %d %s", status, a.Status, a.Data)
		}
		log.want(t, 1, "level=WARN", "2026-07-28")
		server.Close()
	}
}

// A client decides how many messages are left out, so they do not get a line each.
func TestTrouble_MessagesLeftOut(t *testing.T) {
	s, log := newLogged(t, eventlog.Settings{})
	up := newEarlier(t)
	in := s.start(t, testConfig(up.URL))
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		w.stream()
		for range 3 {
			w.send("", `{"jsonrpc":"2.0","id":"another","result":{}}`)
		}
		w.result("", m)
	})
	c := toolCall(t, asks)
	wantStatus(t, s.do(t, c), http.StatusOK)
	in.wantMetric(t, 3, "dropped_messages_total", host.DropLate)
	log.want(t, 1, "is left out", c.Session)
}
