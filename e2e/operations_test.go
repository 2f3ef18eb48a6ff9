package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rejoin/shared/event"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// operationsBlocks returns the blocks of a language in docs/operations.md.
func operationsBlocks(t *testing.T, language string) (blocks []string) {
	t.Helper()
	_, all := document(t, "../docs/operations.md")
	for _, b := range all {
		if b.lang == language {
			blocks = append(blocks, b.text)
		}
	}
	return blocks
}

// The document's commands for backups are run as they are.
func TestDocument_BackupIsRestored(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	backup := filepath.Join(t.TempDir(), "backup.tgz")
	run := func(script string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", script) //nolint:gosec // from the repository
		cmd.Env = append(os.Environ(), "data="+p.data, "backup="+backup)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	scripts := operationsBlocks(t, "sh")
	if len(scripts) != 2 || !strings.HasPrefix(scripts[0], "# backup") || !strings.HasPrefix(scripts[1], "# restore") {
		t.Fatalf("the document has these commands: %q", scripts)
	}
	path := streamPath("kept", "main")
	early := p.publish("kept", "main", 1, 2)
	p.publish("kept", "main", 3, 5)
	p.stop()
	run(scripts[0])
	// It holds all messages, as the folder does, which only its owner may open.
	if info, err := os.Stat(backup); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup is %v, %v", info, err)
	}
	p.start()
	late := p.publish("kept", "main", 6, 9)
	p.stop()
	run(scripts[1])
	p.start()
	p.begun(path, early)
	p.publish("kept", "main", 101, 110) // beyond the cursor late

	s := p.subscribe(path, early)
	if !s.connected() {
		t.Error("an ID from before the backup is not resumed")
	}
	s.numbers(3, 5)
	s.numbers(101, 110)
	s = p.subscribe(path, late)
	s.connected()
	if g := s.gap(); g.Reason != "rolled_back" || !g.Certain || g.Requested != late {
		t.Errorf("the gap is %+v", g)
	}
	for n := 0; n != 110; { // events seen before may arrive again, and in order
		next := numberOf(t, s.next("message").Data)
		if next <= n || n == 0 && next > 101 || n >= 101 && next != n+1 {
			t.Fatalf("%d comes after %d", next, n)
		}
		n = next
	}
}

// A backup that is missing or broken leaves the volume of compose as it is.
func TestDocument_RestoreOfAVolume(t *testing.T) {
	t.Parallel()
	document := must.Value(os.ReadFile("../docs/operations.md"))(t)
	commands := regexp.MustCompile(`busybox sh -c '([^'\n]+)'`).FindAllStringSubmatch(string(document), -1)
	if len(commands) != 2 || !strings.Contains(commands[0][1], " -czf ") || !strings.Contains(commands[1][1], " -xzf ") {
		t.Fatalf("the document has these commands: %q", commands)
	}
	for name, c := range map[string]struct {
		damage   string
		restored bool
	}{
		"good":    {"true", true},
		"missing": {"rm /backup/log.tgz", false},
		"broken":  {"echo cut > /backup/log.tgz", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			run := func(script string) error {
				script = regexp.MustCompile(` /(log|backup)\b`).ReplaceAllString(script, " "+dir+"/$1")
				return exec.CommandContext(t.Context(), "sh", "-c", script).Run() //nolint:gosec // from the repository
			}
			for _, script := range []string{"mkdir /log /backup && echo before > /log/events", commands[0][1], "echo after > /log/events", c.damage} {
				if err := run(script); err != nil {
					t.Fatalf("%s: %v", script, err)
				}
			}
			if err := run(commands[1][1]); (err == nil) != c.restored {
				t.Errorf("the restore ends with %v", err)
			}
			want := "after\n"
			if c.restored {
				want = "before\n"
			}
			if got, err := os.ReadFile(filepath.Join(dir, "log", "events")); err != nil || string(got) != want {
				t.Errorf("the volume has %q, %v, want %q", got, err, want)
			}
			if info, err := os.Stat(filepath.Join(dir, "backup", "log.tgz")); err == nil && info.Mode().Perm() != 0o600 {
				t.Errorf("the backup has the mode %o", info.Mode().Perm())
			}
		})
	}
}

// begun waits until the janitor has begun the next generation of the log, for which others
// wait for 3 s only. earlier is an event ID of the stream, of the generation that the log had before.
func (p *proc) begun(path, earlier string) {
	p.t.Helper()
	before := must.Value(event.ParseID(earlier))(p.t)
	waittest.Until(p.t, "the generation is begun", func() bool {
		var page struct{ Cursor string }
		a, err := try(http.MethodGet, p.api()+path+"?from=now", "", "Accept", "application/json")
		if err != nil || json.Unmarshal([]byte(a.body), &page) != nil {
			return false
		}
		now, err := event.ParseID(page.Cursor)
		return err == nil && now.Tag != before.Tag
	})
}
