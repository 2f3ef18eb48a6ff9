package remote_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"rejoin/standalone/remote"
)

// A shell's <(command) is a pipe.
func TestToken_Pipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if _, err := w.WriteString("secret\n"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	token, err := remote.Flags{TokenFile: fmt.Sprintf("/dev/fd/%d", r.Fd())}.Token()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := token(context.Background()); got != "secret" || err != nil {
			t.Errorf("token %q, %v", got, err)
		}
	}
}

func TestToken_Replaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	token, err := remote.Flags{TokenFile: path}.Token()
	if err != nil {
		t.Fatal(err)
	}
	write("second")
	if got, err := token(context.Background()); got != "second" || err != nil {
		t.Errorf("token %q, %v", got, err)
	}
}
