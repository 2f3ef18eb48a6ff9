package front

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"rejoin/shared/flagtype"
)

// Files are a certificate and its key.
type Files struct {
	// Cert is a file with the certificate and those that lead to its issuer, and Key one with its
	// key, both in PEM. They are read again when they change. Default: no TLS.
	Cert string `name:"tls-cert" help:"File with the certificate of the edge, in PEM, with those that lead to its issuer. With --tls-key, the edge speaks HTTPS with HTTP/1.1 and HTTP/2; the files are read again when they change." placeholder:"FILE"`
	Key  string `name:"tls-key" help:"File with the key of --tls-cert, in PEM." placeholder:"FILE"`
}

// On reports whether there is TLS.
func (f Files) On() bool { return f.Cert != "" }

// Validate reports a file without the other one.
func (f Files) Validate() error {
	if (f.Cert == "") != (f.Key == "") {
		return errors.New("--tls-cert and --tls-key belong together")
	}
	return nil
}

// Check reports files that cannot be used, except files that cannot be read twice.
func (f Files) Check() error {
	if !f.On() || f.Key == "" || !flagtype.ReadTwice(f.Cert) || !flagtype.ReadTwice(f.Key) {
		return nil
	}
	if _, err := f.load(slog.New(slog.DiscardHandler)); err != nil {
		return &flagtype.FileError{Err: err}
	}
	return nil
}

// lookEvery is the least time between two looks at the files, which handshakes take.
const lookEvery = time.Second

// pair is the newest content of the files that fitted together. It is safe for concurrent use.
type pair struct {
	files Files
	log   *slog.Logger
	now   func() time.Time

	mu     sync.Mutex
	cert   *tls.Certificate
	seen   [2]stamp // of cert, or of files that could not be used
	looked time.Time
}

// stamp tells versions of a file apart.
type stamp struct {
	modified time.Time
	size     int64
}

func (f Files) load(log *slog.Logger) (*pair, error) {
	p := &pair{files: f, log: log, now: time.Now}
	p.seen = f.stamps()
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("cannot use --tls-cert and --tls-key: %w", err)
	}
	p.cert, p.looked = &cert, p.now()
	return p, nil
}

// get returns the certificate for a handshake. Files that do not fit together, as between two
// renames, are tried again at the next change; until then the previous certificate is used.
func (p *pair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.now(); now.Sub(p.looked) >= lookEvery {
		p.looked = now
		if seen := p.files.stamps(); seen != p.seen {
			p.seen = seen
			p.read()
		}
	}
	return p.cert, nil
}

// read reads the files. The caller holds the lock.
func (p *pair) read() {
	cert, err := tls.LoadX509KeyPair(p.files.Cert, p.files.Key)
	if err != nil {
		p.log.Warn("the changed certificate cannot be used; the one before is", "error", err)
		return
	}
	p.cert = &cert
	p.log.Info("the certificate was read again", "expires", cert.Leaf.NotAfter)
}

// stamps returns the stamps of the files; a missing file has none.
func (f Files) stamps() (all [2]stamp) {
	for i, name := range []string{f.Cert, f.Key} {
		if info, err := os.Stat(name); err == nil {
			all[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return all
}
