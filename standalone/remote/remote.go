// Package remote is the common part of the commands that talk to a Rejoin over HTTP.
package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"rejoin/shared/client"
	"rejoin/shared/event"
	"rejoin/shared/flagtype"
)

// Flags are the address of a Rejoin, and the token of the requests.
type Flags struct {
	// URL is the address of Rejoin. Default: http://127.0.0.1:8080.
	URL string `name:"url" default:"http://127.0.0.1:8080" help:"URL of the Rejoin server." placeholder:"URL"`

	// TokenFile is a file with a bearer token. Default: none is sent.
	TokenFile string `type:"path" help:"File with a bearer token; read before every request, so you can replace it, but a pipe once." placeholder:"FILE"`
}

// Validate returns an error when the URL cannot be one.
func (f Flags) Validate() error {
	cfg := client.PublisherConfig{URL: f.URL}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("--url %q: %w", f.URL, err)
	}
	return nil
}

// Shown returns the URL, valid, without a password.
func (f Flags) Shown() string {
	u, _ := url.Parse(f.URL) // Validate has parsed it
	return u.Redacted()
}

// Hint adds to a refusal what the user may do about it, if a flag is wrong.
func (f Flags) Hint(err error) error {
	if refused, ok := errors.AsType[*client.Error](err); ok {
		return f.Refused(err, refused.Status, refused.Code)
	}
	return err
}

// Refused is Hint for a response with this status and code; each refusal by Rejoin has a code.
func (f Flags) Refused(err error, status int, code string) error {
	var hint string
	switch {
	case status == http.StatusUnauthorized && f.TokenFile == "":
		hint = "give a token with --token-file"
	case status == http.StatusUnauthorized && f.emptyToken():
		hint = "the file of --token-file is empty"
	case status/100 == 4 && (code == "" || code == "method_not_allowed"): // another server, or the port of one service
		hint = fmt.Sprintf("is --url=%s the address of Rejoin, and is it http:// or https://?", f.Shown())
	default:
		return err
	}
	return fmt.Errorf("%s; %s", strings.TrimSuffix(err.Error(), "."), hint)
}

// emptyToken reports whether the file that is read before each request has no token.
func (f Flags) emptyToken() bool {
	if !flagtype.ReadTwice(f.TokenFile) {
		return false
	}
	text, err := os.ReadFile(f.TokenFile)
	return err == nil && len(bytes.TrimSpace(text)) == 0
}

// Untrusted returns an error with advice about an untrusted server certificate; nil for any other error.
func Untrusted(err error) error {
	untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err)
	if !ok {
		return nil
	}
	return fmt.Errorf("the server's certificate is not trusted (%w); SSL_CERT_FILE can name a file of certificates to trust", untrusted.Err)
}

// Plain returns the error of a request without its URL and address.
func Plain(err error) error {
	if asked, ok := errors.AsType[*url.Error](err); ok {
		err = asked.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		err = op.Err
	}
	return err
}

// Session is an argument that names a session.
type Session string

// Validate returns an error when there is no such name.
func (s Session) Validate() error { return event.CheckSession(string(s)) }

// Stream is an argument that names a stream.
type Stream string

// Validate returns an error when there is no such name.
func (s Stream) Validate() error { return event.CheckStream(string(s)) }

// Token returns a function that reads the token, or nil without a file. It also reads the token once:
// an error says that there is none.
func (f Flags) Token() (client.TokenFunc, error) {
	if f.TokenFile == "" {
		return nil, nil
	}
	read := func() (string, error) {
		token, err := os.ReadFile(f.TokenFile)
		if err != nil {
			return "", fmt.Errorf("the file of --token-file cannot be read: %w", err)
		}
		return strings.TrimSpace(string(token)), nil
	}
	first, err := read()
	pipe := !flagtype.ReadTwice(f.TokenFile)
	return func(context.Context) (string, error) {
		if pipe {
			return first, nil
		}
		token, err := read()
		if err == nil && token == "" && first != "" { // it is being written
			err = errors.New("the file of --token-file is empty")
		}
		return token, err
	}, err
}
