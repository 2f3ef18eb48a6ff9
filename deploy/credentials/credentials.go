// Package credentials makes the credentials of the services for NATS.
package credentials

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"
)

// Services have a user each in nats/nats.conf.
var Services = []string{"ingest", "sse-edge", "janitor", "bridge"}

// Outside are the users that are no services of Rejoin: `publisher` asks ingest, `direct`
// publishes straight to the log, `operator` is for "rejoin log". Their keys are of no use
// until somebody copies them from the folder.
var Outside = []string{"publisher", "direct", "operator"}

// Guarded are the services with access control.
var Guarded = []string{"ingest", "sse-edge", "janitor"}

// The files that are written, below the folder of a user, and for NATS below the folder itself.
const (
	seedFile   = "nats.nk"
	SecretFile = "jwt.secret"      // for --jwt-secret-file
	PublicFile = "jwt.pem"         // for --jwt-key-file
	KeysFile   = "nats/users.conf" // included by nats.conf
)

// Seed is the file with a user's seed.
func Seed(dir, user string) string {
	if slices.Contains(Outside, user) {
		return filepath.Join(dir, "outside", user+".nk")
	}
	return filepath.Join(dir, user, seedFile)
}

// Make gives every user that has none an NKey: its seed in the file [Seed], which only the
// owner of the process may read, and its public key as a variable in
// <dir>/nats/users.conf. Existing files are kept, so that it may run before every start.
//
// Each service's folder is meant for its service alone. Folders that are missing are made.
func Make(dir string) error {
	var conf strings.Builder
	conf.WriteString("# The public keys of the users in nats.conf.\n")
	for _, user := range slices.Concat(Services, Outside) {
		public, err := User(Seed(dir, user))
		if err != nil {
			return fmt.Errorf("the key of %s: %w", user, err)
		}
		fmt.Fprintf(&conf, "%s: %s\n", Variable(user), public)
	}
	return write(filepath.Join(dir, KeysFile), []byte(conf.String()))
}

// Share gives all services with access control a file, or takes it from them when text is
// empty.
func Share(dir, name, text string) error {
	for _, user := range Guarded {
		file := filepath.Join(dir, user, name)
		var err error
		if text != "" {
			err = write(file, []byte(text))
		} else if err = os.Remove(file); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("the %s of %s: %w", name, user, err)
		}
	}
	return nil
}

// Variable is the name under which nats.conf knows a user's public key. A variable named
// OPERATOR alone would be an option of the server.
func Variable(user string) string {
	if slices.Contains(Outside, user) {
		user = "outside-" + user
	}
	return strings.ToUpper(strings.ReplaceAll(user, "-", "_"))
}

// User returns the public key of the seed in a file, which it makes when there is none. Only the owner of the
// process may read the file.
func User(file string) (public string, err error) {
	seed, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return newUser(file)
	}
	if err != nil {
		return "", err
	}
	key, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
	if err != nil {
		return "", fmt.Errorf("%s holds no seed (%w); remove it to get a new one", file, err)
	}
	defer key.Wipe()
	if public, err = key.PublicKey(); err == nil && !nkeys.IsValidPublicUserKey(public) {
		err = fmt.Errorf("%s holds the seed of another kind; remove it to get a new one", file)
	}
	return public, err
}

func newUser(file string) (public string, err error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return "", err
	}
	defer key.Wipe()
	seed, err := key.Seed()
	if err != nil {
		return "", err
	}
	if public, err = key.PublicKey(); err != nil {
		return "", err
	}
	return public, write(file, slices.Concat(seed, []byte("\n")))
}

// write replaces a file as a whole, so that a crash leaves the old one or the new one.
func write(file string, data []byte) error {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*") // only its owner may read it
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // already renamed after a success
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
