package standalone

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// A kill may come between the two files that hold a stream's metadata.
func TestKill_BetweenFilesOfMetadata(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	events := func(r *running, query string) (page struct {
		Events []any
		Cursor string
		Gap    any
	},
	) {
		status, answer := request(t, http.MethodGet, "http://"+r.addrs["--edge-addr"]+eventPath+query, "")
		if err := json.Unmarshal([]byte(answer), &page); status != http.StatusOK || err != nil {
			t.Fatalf("the events: %d %s, %v", status, answer, err)
		}
		return page
	}
	r := start(t, data)
	if status, answer := request(t, http.MethodPost, "http://"+r.addrs["--ingest-addr"]+eventPath, message); status != http.StatusCreated {
		t.Fatalf("published: %d %s", status, answer)
	}
	before := events(r, "")
	waittest.Until(t, "the edge has the event", func() bool { before = events(r, ""); return len(before.Events) > 0 })
	r.stop()
	sums, err := filepath.Glob(filepath.Join(data, "jetstream", "*", "streams", "*", "meta.sum"))
	if err != nil || len(sums) == 0 {
		t.Fatalf("%d checksums: %v", len(sums), err)
	}
	for i, sum := range sums {
		switch i {
		case 0:
			err = os.Remove(sum)
		case 1:
			err = os.Truncate(sum, 0)
		default:
			if err = os.WriteFile(sum, []byte("0123456789abcdef"), 0o600); err == nil {
				err = os.Chtimes(sum, time.Time{}, time.Now().Add(-time.Hour))
			}
		}
		must.NoError(t, err)
	}
	r = start(t, data)
	if next := events(r, "?after="+before.Cursor); len(next.Events) != 0 || next.Gap != nil {
		t.Errorf("after %+v come %+v", before, next)
	}
	if log := r.log.String(); strings.Contains(log, "creating it again") {
		t.Error("a partition was gone")
	}
}

func TestMendStream_DamagedMetadata(t *testing.T) {
	meta := filepath.Join(t.TempDir(), "S", "meta.inf")
	sum := filepath.Join(filepath.Dir(meta), "meta.sum")
	for name, text := range map[string]string{
		"damaged later":     `{"name":"S"}`,
		"not JSON":          `{"name":"S"`,
		"of another stream": `{"name":"T"}`,
	} {
		t.Run(name, func(t *testing.T) {
			must.NoError(t, os.MkdirAll(filepath.Dir(meta), 0o700))
			now := time.Now()
			for _, file := range []struct{ name, text string }{{meta, text}, {sum, "0123456789abcdef"}} {
				must.NoError(t, os.WriteFile(file.name, []byte(file.text), 0o600))
				must.NoError(t, os.Chtimes(file.name, now, now))
			}
			if mended, err := mendStream(meta); mended || err != nil {
				t.Errorf("mended %t, %v", mended, err)
			}
			if got, err := os.ReadFile(sum); string(got) != "0123456789abcdef" {
				t.Errorf("the checksum is %q, %v", got, err)
			}
		})
	}
}

// A kill or a full disk while the checksum is written leaves the one before, which is older than the metadata.
func TestMendStream_ChecksumAsAWhole(t *testing.T) {
	dir := t.TempDir()
	meta, sum, before := filepath.Join(dir, "S", "meta.inf"), filepath.Join(dir, "S", "meta.sum"), filepath.Join(dir, "before")
	must.NoError(t, os.MkdirAll(filepath.Dir(meta), 0o700))
	for file, text := range map[string]string{meta: `{"name":"S"}`, sum: "0123456789abcdef"} {
		must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	must.NoError(t, os.Chtimes(sum, time.Time{}, time.Now().Add(-time.Hour)))
	must.NoError(t, os.Link(sum, before))
	if mended, err := mendStream(meta); !mended || err != nil {
		t.Errorf("mended %t, %v", mended, err)
	}
	if got, err := os.ReadFile(before); string(got) != "0123456789abcdef" {
		t.Errorf("it was overwritten with %q, %v", got, err)
	}
	if got, err := os.ReadFile(sum); len(got) != 16 || string(got) == "0123456789abcdef" {
		t.Errorf("the checksum is %q, %v", got, err)
	}
}

// The path of the data folder is no pattern.
func TestMendMetadata_FolderWithBrackets(t *testing.T) {
	for _, name := range []string{"a[b]", "a[b", `a\b`, "a*"} {
		t.Run(name, func(t *testing.T) {
			f := &folder{path: filepath.Join(t.TempDir(), name)}
			stream := filepath.Join(f.path, "jetstream", "$G", "streams", "S")
			must.NoError(t, os.MkdirAll(stream, 0o700))
			must.NoError(t, os.WriteFile(filepath.Join(stream, "meta.inf"), []byte(`{"name":"S"}`), 0o600))
			must.NoError(t, mendMetadata(f, slog.New(slog.DiscardHandler)))
			must.Value(os.Stat(filepath.Join(stream, "meta.sum")))(t)
		})
	}
}
