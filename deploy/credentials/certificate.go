package credentials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The certificates of a cluster, below the folder; the key is in a file beside each,
// whose name has a .key more.
const (
	RouteFile = "nats/route.pem" // by which NATS servers know each other
	ProxyFile = "proxy/tls.pem"  // for browsers, unless another one is given
)

// The names in the certificates.
var (
	RouteNames = []string{"nats-1", "nats-2", "nats-3"}
	ProxyNames = []string{"localhost", "127.0.0.1", "::1"}
)

// certificateLife is long because they are not renewed.
const certificateLife = 10 * 365 * 24 * time.Hour

// MakeCertificates makes those certificates of a cluster that are missing. Each is signed
// with its own key, good for ten years, and its own authority: a server with the key of a
// route belongs to the cluster.
func MakeCertificates(dir string) error {
	for file, names := range map[string][]string{RouteFile: RouteNames, ProxyFile: ProxyNames} {
		if err := makeCertificate(filepath.Join(dir, file), names); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// makeCertificate writes the key first, so that no certificate is without its key.
func makeCertificate(file string, names []string) error {
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	certificate, err := selfSigned(key, names, time.Now())
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := write(file+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})); err != nil {
		return err
	}
	return write(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))
}

func selfSigned(key *ecdsa.PrivateKey, names []string, now time.Time) ([]byte, error) {
	template := &x509.Certificate{ // without a SerialNumber it gets one at random
		Subject:     pkix.Name{CommonName: names[0], Organization: []string{"Rejoin"}},
		NotBefore:   now.Add(-time.Hour), // clocks differ
		NotAfter:    now.Add(certificateLife),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
}
