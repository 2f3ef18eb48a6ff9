package daemon

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
)

// Hostname returns a host, with or without a port, in the form in which hosts are compared:
// without port, brackets and final dot, in lower case.
func Hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// CheckHosts returns an error that names the flag unless hosts can be compared with those of requests.
func CheckHosts(hosts []string, flag string) error {
	for _, h := range hosts {
		if strings.ContainsAny(h, "/@*?# ") {
			return fmt.Errorf("%s takes host names such as foo.example, not %q", flag, h)
		}
	}
	return nil
}

// checkHost returns a handler that answers 403 to requests for a host that an attacker may have
// made to resolve to this machine, and that calls next for all others. It protects against DNS
// rebinding: a page of evil.example whose name resolves to this machine sends that name, and
// could read the answers of next. Nothing else in the request reveals such a page: to a browser the page and
// the port are one origin, and it sends no Sec-Fetch-Site without TLS.
//
// Only names in the public DNS can be rebound by strangers. So these are served without being
// listed:
//
//   - addresses, which Prometheus and orchestrators use;
//   - names without a dot: localhost, and those of containers and services, such as janitor;
//   - this machine's own name, and the one that the port is bound to;
//   - no name, as health checks with HTTP/1.0 have it.
func checkHost(cfg Config, next http.Handler) http.Handler {
	hosts := map[string]bool{Hostname(cfg.AdminAddr): true}
	for _, host := range cfg.AdminHosts {
		hosts[Hostname(host)] = true
	}
	if name, err := os.Hostname(); err == nil {
		hosts[Hostname(name)] = true
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := Hostname(r.Host)
		if _, err := netip.ParseAddr(name); err == nil || !strings.ContainsAny(name, ".:@") || hosts[name] {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, fmt.Sprintf("The admin port does not serve the host %q; add it with --admin-hosts.", name), http.StatusForbidden)
	})
}
