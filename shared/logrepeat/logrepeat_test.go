package logrepeat_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rejoin/shared/leaktest"
	"rejoin/shared/logrepeat"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestNote_OnceAMinute(t *testing.T) { synctest.Test(t, onceAMinute) }

func onceAMinute(t *testing.T) {
	var out bytes.Buffer
	l := logrepeat.New(slog.New(slog.NewTextHandler(&out, nil)))
	note := func(of string) { l.Note(t.Context(), of, "refused", slog.String("of", of)) }
	expect := func(want ...string) {
		t.Helper()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		out.Reset()
		if len(want) == 0 && lines[0] == "" {
			return
		}
		if len(lines) != len(want) {
			t.Fatalf("%d lines: %q", len(lines), lines)
		}
		for i, w := range want {
			if !strings.HasSuffix(lines[i], w) || !strings.Contains(lines[i], "level=WARN") {
				t.Errorf("%q, want %q", lines[i], w)
			}
		}
	}
	note("a")
	expect("of=a times=1")
	note("a")
	note("b")
	expect("of=b times=1")
	time.Sleep(59 * time.Second)
	note("a")
	expect()
	time.Sleep(time.Second)
	note("a")
	expect("of=a times=3")
}

func TestNote_ManyKinds(t *testing.T) { synctest.Test(t, manyKinds) }

func manyKinds(t *testing.T) {
	l := logrepeat.New(slog.New(slog.DiscardHandler))
	written := 0
	for i := range 1000 {
		if l.Note(t.Context(), fmt.Sprint(i), "refused") {
			written++
		}
	}
	if written != 65 { // 64 kinds, and one line about all others
		t.Errorf("%d lines", written)
	}
	time.Sleep(time.Minute)
	if !l.Note(t.Context(), "new", "refused") {
		t.Error("the kinds of before are not forgotten")
	}
}
