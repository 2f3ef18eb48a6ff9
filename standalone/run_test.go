package standalone

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/alecthomas/kong"

	"rejoin/shared/daemon"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
)

// parsed returns the configuration that arguments make.
func parsed(t *testing.T, args ...string) Config {
	t.Helper()
	var cfg Config
	options := append([]kong.Option{kong.Vars{"version": "test", "admin_addr": "127.0.0.1:0"}}, Options()...)
	parser, err := kong.New(&cfg, options...)
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range addrFlags {
		args = append(args, flag+"=127.0.0.1:0")
	}
	if _, err := parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// Run leaves nothing behind, whenever it is stopped.
func TestRun_EndsCleanly(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	for name, told := range map[string]string{"at once": "", "while it starts": "nats listens", "when it is open": "edge open"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if told == "" {
				cancel()
			}
			log := &stopper{at: told, stop: cancel}
			logger, err := (&daemon.Config{LogFormat: "json"}).Logger(log)
			if err != nil {
				t.Fatal(err)
			}
			if err := Run(ctx, parsed(t, "--data="+data), daemon.NewEnv(logger)); err != nil {
				t.Error(err)
			}
		})
	}
}

// stopper stops the program when it logs a message.
type stopper struct {
	waittest.Buffer
	at   string
	stop context.CancelFunc
}

func (s *stopper) Write(p []byte) (int, error) {
	n, err := s.Buffer.Write(p)
	if s.at != "" && bytes.Contains(p, []byte(s.at)) {
		s.stop()
	}
	return n, err
}

// The log has a file open for each partition, which may be more than are kept for the program.
func TestRun_FilesOfPartitionsAreNotForClients(t *testing.T) {
	t.Parallel()
	for files, want := range map[int64]int64{100: 4, 3: 0} {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		log := &stopper{at: "edge open", stop: cancel}
		env := daemon.NewEnv(slog.New(slog.NewTextHandler(log, nil)))
		env.Files = quota.NewPool(files)
		if err := Run(ctx, parsed(t, "--data="+t.TempDir(), "--partitions=4"), env); err != nil {
			t.Fatal(err)
		}
		if got := env.Files.Used(); got != want {
			t.Errorf("of %d files %d are the log's, want %d", files, got, want)
		}
		if warned := strings.Contains(log.String(), "ulimit -n"); warned != (want == 0) {
			t.Errorf("with %d files: %s", files, log.String())
		}
	}
}

// A disk that fills up while the program runs cannot be had on every machine: what
// the server says about it can.
func TestRun_ServerCannotWrite(t *testing.T) {
	for _, says := range []string{"JetStream stream '%s > %s' critical write error: %v", "JetStream out of %s resources, will be DISABLED"} {
		failed, fail := context.WithCancelCause(t.Context())
		n := &natsServer{failed: failed}
		log := &serverLog{log: daemon.NewEnv(nil).Log, folder: "/data", fail: fail}
		log.Errorf("something that passes")
		if failed.Err() != nil {
			t.Fatal("the program ends for nothing")
		}
		log.Errorf(says, "a", "b", "c")
		if err := n.run(t.Context()); !errors.Is(err, ErrNoSpace) || !strings.HasPrefix(err.Error(), "JetStream cannot write to /data any more") {
			t.Errorf("the program ends with %v", err)
		}
	}
}

// Without a free file descriptor there may be disk space.
func TestRun_ServerHasTooManyFiles(t *testing.T) {
	failed, fail := context.WithCancelCause(t.Context())
	n := &natsServer{failed: failed}
	log := &serverLog{log: daemon.NewEnv(nil).Log, folder: "/data", fail: fail}
	log.Errorf("Filestore [%s] Critical write error: %v", "MCP_0", &os.PathError{Op: "open", Path: "/data/index.db", Err: syscall.EMFILE})
	if err := n.run(t.Context()); errors.Is(err, ErrNoSpace) || !errors.Is(err, ErrServer) || !strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("the program ends with %v", err)
	}
}

func TestBanner_Version(t *testing.T) {
	attrs := (&program{}).banner("http://127.0.0.1:8080")
	if got := attrs[len(attrs)-1]; got == "" || got != daemon.CurrentVersion() {
		t.Errorf("the version is %q", got)
	}
}

func TestFlags_Sizes(t *testing.T) {
	cfg := parsed(t, "--window-bytes=64MB", "--window-backfill=-1", "--max-bytes=1GB", "--max-message-bytes=256KiB", "--memory-budget=0")
	if cfg.Edge.WindowBytes != 64e6 || cfg.Edge.WindowBackfill != -1 || cfg.MinFreeBytes != 256<<20 || cfg.Sessions.MaxMetadataBytes != 16<<20 || cfg.Bridge.CacheBytes != 16<<20 {
		t.Errorf("%+v", cfg)
	}
	if s := cfg.Log.Settings(); s.MaxBytes != 1e9 || s.MaxMessageBytes != 256<<10 {
		t.Errorf("%+v", s)
	}
}
