package remote_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"rejoin/shared/must"
	"rejoin/standalone/remote"
)

// A shell's <(command) is a pipe.
func TestToken_Pipe(t *testing.T) {
	r, w, err := os.Pipe()
	must.NoError(t, err)
	defer func() { _ = r.Close() }()
	must.Value(w.WriteString("secret\n"))(t)
	must.NoError(t, w.Close())
	token := must.Value(remote.Flags{TokenFile: fmt.Sprintf("/dev/fd/%d", r.Fd())}.Token())(t)
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
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("first")
	token := must.Value(remote.Flags{TokenFile: path}.Token())(t)
	write("second")
	if got, err := token(context.Background()); got != "second" || err != nil {
		t.Errorf("token %q, %v", got, err)
	}
	write("") // the first half of a replacement: without a token the server would refuse the client for good
	if got, err := token(context.Background()); err == nil {
		t.Errorf("token %q of an empty file", got)
	}
}
