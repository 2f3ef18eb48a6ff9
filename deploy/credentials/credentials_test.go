package credentials_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nkeys"

	"rejoin/deploy/credentials"
	"rejoin/shared/must"
)

// read returns all files below a folder.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	files := os.DirFS(dir)
	for _, pattern := range []string{"*", "*/*", "*/.*"} {
		names := must.Value(filepath.Glob(filepath.Join(dir, pattern)))(t)
		for _, name := range names {
			name := must.Value(filepath.Rel(dir, name))(t)
			f := must.Value(files.Open(name))(t)
			info := must.Value(f.Stat())(t)
			if !info.IsDir() {
				var b bytes.Buffer
				must.Value(b.ReadFrom(f))(t)
				if all[name] = b.String(); info.Mode().Perm() != 0o600 {
					t.Errorf("%s has mode %s", name, info.Mode())
				}
			}
			_ = f.Close()
		}
	}
	return all
}

func TestCredentials_KeysAreKept(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, credentials.Make(dir))
	first := read(t, dir)
	users := slices.Concat(credentials.Services, credentials.Outside)
	if len(first) != len(users)+1 {
		t.Errorf("there are %d files", len(first))
	}
	for _, user := range users {
		key, err := nkeys.FromSeed([]byte(strings.TrimSpace(first[credentials.Seed("", user)])))
		if err != nil {
			t.Fatalf("%s: %v", user, err)
		}
		public := must.Value(key.PublicKey())(t)
		if line := credentials.Variable(user) + ": " + public + "\n"; !nkeys.IsValidPublicUserKey(public) || !strings.Contains(first[credentials.KeysFile], line) {
			t.Errorf("the server does not know %s: %s", user, first[credentials.KeysFile])
		}
	}

	// Make writes the files that a crash left out or a new service needs, and no others.
	for _, name := range []string{credentials.KeysFile, credentials.Seed("", "bridge")} {
		must.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
	must.NoError(t, credentials.Make(dir))
	for name, text := range read(t, dir) {
		if isNew := text != first[name]; isNew != (name == credentials.KeysFile || strings.HasPrefix(name, "bridge/")) {
			t.Errorf("%s is new: %t", name, isNew)
		}
	}
}

func TestCredentials_InvalidSeedIsKept(t *testing.T) {
	account := must.Value(nkeys.CreateAccount())(t)
	other := must.Value(account.Seed())(t)
	for _, text := range []string{"", "SUA", string(other)} {
		dir := t.TempDir()
		file := credentials.Seed(dir, "janitor")
		must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		if err := credentials.Make(dir); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", text, err)
		}
		if is, err := os.ReadFile(file); err != nil || string(is) != text {
			t.Errorf("%q became %q, %v", text, is, err)
		}
		if _, err := os.Stat(filepath.Join(dir, credentials.KeysFile)); err == nil {
			t.Error("the server gets keys nevertheless")
		}
	}
}

func TestCredentials_TokenKey(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"one secret", "another", "", ""} {
		must.NoError(t, credentials.Share(dir, credentials.SecretFile, text))
		got := read(t, dir)
		for _, user := range credentials.Services {
			want := text
			if user == "bridge" {
				want = "" // its clients have been let in already
			}
			if is := got[user+"/"+credentials.SecretFile]; is != want {
				t.Errorf("%s has %q, want %q", user, is, want)
			}
		}
		if n := len(got); n != 0 && text == "" {
			t.Errorf("%d files are left", n)
		}
	}
}

// A disk that is full, here for a process of its own, leaves the services the key that they have.
func TestCredentials_TokenKeyOnAFullDisk(t *testing.T) {
	if dir := os.Getenv("FULL_DISK"); dir != "" {
		signal.Ignore(syscall.SIGXFSZ)
		must.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{}))
		_ = credentials.Share(dir, credentials.SecretFile, "another")
		return
	}
	dir := t.TempDir()
	must.NoError(t, credentials.Share(dir, credentials.SecretFile, "one secret"))
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCredentials_TokenKeyOnAFullDisk$") //nolint:gosec // this test
	cmd.Env = append(os.Environ(), "FULL_DISK="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Logf("%v\n%s", err, out) // it may not even write that
	}
	got := read(t, dir)
	for _, user := range credentials.Guarded {
		if is := got[user+"/"+credentials.SecretFile]; is != "one secret" {
			t.Errorf("%s has %q", user, is)
		}
	}
}

func TestCredentials_ClusterCertificatesAreKept(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, credentials.MakeCertificates(dir))
	first := read(t, dir)
	for file, names := range map[string][]string{credentials.RouteFile: credentials.RouteNames, credentials.ProxyFile: credentials.ProxyNames} {
		pair, err := tls.X509KeyPair([]byte(first[file]), []byte(first[file+".key"]))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		itself := x509.NewCertPool()
		itself.AddCert(pair.Leaf)
		for _, name := range names {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: itself, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
				t.Errorf("%s is not good for %s: %v", file, name, err)
			}
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: itself, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s is no client's: %v", file, err)
		}
	}
	if first[credentials.RouteFile] == first[credentials.ProxyFile] {
		t.Error("browsers and routes have the same certificate")
	}

	// A certificate that is missing after a crash is made again.
	must.NoError(t, os.Remove(filepath.Join(dir, credentials.RouteFile)))
	must.NoError(t, credentials.MakeCertificates(dir))
	again := read(t, dir)
	if again[credentials.ProxyFile] != first[credentials.ProxyFile] || again[credentials.ProxyFile+".key"] != first[credentials.ProxyFile+".key"] {
		t.Error("the proxy's certificate was replaced")
	}
	must.Value(tls.X509KeyPair([]byte(again[credentials.RouteFile]), []byte(again[credentials.RouteFile+".key"])))(t)
}
