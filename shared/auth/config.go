package auth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// The values of Config.Auth.
const (
	ModeNone = "none"
	ModeJWT  = "jwt"
)

// Config configures access control, and the keys and claims of accepted tokens. Each field
// is a flag of the programs that have access control.
type Config struct {
	// Auth is none or jwt; empty means none. Default: none.
	Auth string `name:"auth" default:"none" enum:"none,jwt" help:"Access control: none, or jwt for bearer tokens."`

	// SecretFile holds the shared secret of HS256, 32 bytes or more; white space
	// around it does not count. One of SecretFile, KeyFile and JWKSURL is needed.
	SecretFile string `name:"jwt-secret-file" type:"path" help:"File with the shared secret of HS256 tokens, at least 32 bytes." placeholder:"FILE"`

	// KeyFile holds the public key of RS256, ES256 or EdDSA, in PEM. The kind of
	// key decides the algorithm.
	KeyFile string `name:"jwt-key-file" type:"path" help:"PEM file with the public key of RS256, ES256 or EdDSA tokens." placeholder:"FILE"`

	// JWKSURL is the URL of the public keys of RS256, ES256 and EdDSA (RFC 7517). It
	// must be https, or on this machine, unless Insecure is set. It needs Issuer.
	JWKSURL string `name:"jwt-jwks-url" help:"URL of the JWKS with the public keys of RS256, ES256 and EdDSA tokens." placeholder:"URL"`

	// Audience is the audience that the claim "aud" must hold. Required.
	Audience string `name:"jwt-audience" help:"Audience that the claim aud of a token must contain." placeholder:"NAME"`

	// Issuer is the required value of the claim "iss". Empty: the claim is ignored. A JWKS
	// needs it: the set may hold keys of several issuers, and a session belongs to a subject,
	// which another issuer may give to another user.
	Issuer string `name:"jwt-issuer" help:"Issuer that the claim iss of a token must name; required with --jwt-jwks-url." placeholder:"NAME"`

	// Insecure allows to listen where other machines reach it without access control,
	// and to fetch keys over plain HTTP.
	Insecure bool `name:"insecure" help:"Accept connections from other machines without access control, and fetch keys over plain HTTP."`
}

// On reports whether there is access control.
func (c Config) On() bool { return c.Auth == ModeJWT }

// Validate returns an error with advice about the first flag that makes no
// sense. It reads no file.
func (c Config) Validate() error {
	given := 0
	for _, v := range []string{c.SecretFile, c.KeyFile, c.JWKSURL} {
		if v != "" {
			given++
		}
	}
	switch {
	case c.Auth != "" && c.Auth != ModeNone && c.Auth != ModeJWT:
		return fmt.Errorf("--auth %q is neither none nor jwt", c.Auth)
	case !c.On() && (given > 0 || c.Audience != "" || c.Issuer != ""):
		return errors.New("there are --jwt flags or REJOIN_JWT_ variables, and no access control; switch it on with --auth=jwt, or leave them out")
	case !c.On():
		return nil
	case given != 1:
		return errors.New("--auth=jwt needs one of --jwt-secret-file, --jwt-key-file and --jwt-jwks-url, and only one")
	case c.Audience == "":
		return errors.New("--auth=jwt needs --jwt-audience, so that tokens made for others are of no use here")
	case c.JWKSURL != "" && c.Issuer == "":
		return errors.New("--jwt-jwks-url needs --jwt-issuer, since keys of several issuers may be there, and each of them may have users of the same names; set it to the claim iss of your tokens")
	case c.JWKSURL != "":
		return c.checkURL()
	}
	return nil
}

func (c Config) checkURL() error {
	u, err := url.Parse(c.JWKSURL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("--jwt-jwks-url must be a URL such as https://login.example/keys.json")
	case u.User != nil:
		return errors.New("--jwt-jwks-url must not hold a password")
	case u.Scheme == "http" && !loopback(u.Hostname()) && !c.Insecure:
		return errors.New("--jwt-jwks-url is not https, so that anybody on the way could replace the keys; use https, or accept it with --insecure")
	}
	return nil
}

// CheckListen returns an error with advice if addr, host:port, can be reached
// from other machines while there is no access control. flag is the flag that set addr,
// such as "--edge-addr". It returns nil for an addr that cannot be read.
func (c Config) CheckListen(addr, flag string) error {
	host, _, err := net.SplitHostPort(addr)
	if err == nil && !loopback(host) && !c.On() && !c.Insecure {
		return fmt.Errorf("%s %s can be reached from other machines, and there is no access control; switch it on with --auth=jwt, listen on 127.0.0.1, or accept it with --insecure", flag, addr)
	}
	return nil
}

// loopback reports whether a host can be reached from this machine only. The only such name
// that it knows is "localhost".
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
