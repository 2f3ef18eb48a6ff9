package standalone

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/alecthomas/kong"

	"rejoin/shared/daemon"
	"rejoin/shared/must"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
)

// parsed returns the configuration that arguments make.
func parsed(t *testing.T, args ...string) Config {
	t.Helper()
	var cfg Config
	options := append([]kong.Option{kong.Vars{"version": "test", "admin_addr": "127.0.0.1:0"}}, Options()...)
	parser := must.Value(kong.New(&cfg, options...))(t)
	for _, flag := range addrFlags {
		args = append(args, flag+"=127.0.0.1:0")
	}
	must.Value(parser.Parse(args))(t)
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
			logger := (&daemon.Config{LogFormat: "json"}).Logger(log)
			must.NoError(t, Run(ctx, parsed(t, "--data="+data), daemon.NewEnv(logger)))
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
		must.NoError(t, Run(ctx, parsed(t, "--data="+t.TempDir(), "--partitions=4"), env))
		if got := env.Files.Used(); got != want {
			t.Errorf("of %d files %d are the log's, want %d", files, got, want)
		}
		if warned := strings.Contains(log.String(), "ulimit -n"); warned != (want == 0) {
			t.Errorf("with %d files: %s", files, log.String())
		}
	}
}

// Not every machine has a disk that fills up while the program runs, so the server's error text stands in
// for one. Without a free file descriptor there may be disk space.
func TestRun_ServerCannotWrite(t *testing.T) {
	for says, want := range map[string]struct {
		cause error
		text  string
	}{
		"JetStream stream '%s > a' critical write error: %v":   {io.ErrShortWrite, "JetStream cannot write to /data any more"},
		"JetStream out of %s (%v) resources, will be DISABLED": {io.ErrShortWrite, "JetStream cannot write to /data any more"},
		"Filestore [%s] Critical write error: %v":              {&os.PathError{Err: syscall.EMFILE}, "ulimit -n"},
	} {
		failed, fail := context.WithCancelCause(t.Context())
		n := &natsServer{failed: failed}
		log := &serverLog{log: daemon.NewEnv(nil).Log, folder: "/data", fail: fail}
		log.Errorf("something that passes")
		if failed.Err() != nil {
			t.Fatal("the program ends for nothing")
		}
		log.Errorf(says, "MCP_0", want.cause)
		if err := n.run(t.Context()); err == nil || !strings.Contains(err.Error(), want.text) {
			t.Errorf("the program ends with %v", err)
		}
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
