package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Health collects the readiness checks of a program's services. Its zero
// value has no checks and is ready. It is safe for concurrent use.
type Health struct {
	mu       sync.Mutex
	checks   []check
	draining bool
}

type check struct {
	name  string
	ready func() error
}

// Add registers a readiness check: the program is ready when every check
// returns nil. A check runs on each request to /readyz, perhaps at the same
// time as itself, so it must be quick and safe for concurrent use; its error
// is shown on the admin port.
func (h *Health) Add(name string, ready func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, check{name, ready})
}

// Drain makes the program unready at once and for good, without regard to its
// checks, so that balancers send it nothing new. It may be called repeatedly.
func (h *Health) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
}

// Readiness is the JSON body of /readyz.
type Readiness struct {
	Ready    bool      `json:"ready"`
	Draining bool      `json:"draining"`
	Failing  []Failing `json:"failing"` // in the order of Add, never null
}

// Failing is one readiness check that returned an error.
type Failing struct {
	Check string `json:"check"`
	Error string `json:"error"`
}

// Readiness runs all checks, one after the other in the order of Add.
func (h *Health) Readiness() Readiness {
	h.mu.Lock()
	checks := slices.Clone(h.checks) // a check may take locks of its own
	r := Readiness{Draining: h.draining, Failing: []Failing{}}
	h.mu.Unlock()

	for _, c := range checks {
		if err := c.ready(); err != nil {
			r.Failing = append(r.Failing, Failing{c.name, err.Error()})
		}
	}
	r.Ready = !r.Draining && len(r.Failing) == 0
	return r
}

// metric is the readiness as the value of a metric.
func (h *Health) metric() float64 {
	if h.Readiness().Ready {
		return 1
	}
	return 0
}

// serveReady answers 200 when the program is ready and 503 when it is not.
func (h *Health) serveReady(w http.ResponseWriter, _ *http.Request) {
	r := h.Readiness()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !r.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(r) // fails when the client has disconnected
}

// healthcheckTimeout bounds the question whether a program is ready.
const healthcheckTimeout = 3 * time.Second

// checkReady asks the admin port at addr, as it is configured, whether its program is
// ready: nil when it is. A port on all addresses is asked on the loopback interface.
func checkReady(ctx context.Context, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("--admin-addr must be HOST:PORT, not %q: %w", addr, err)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	const enough = 4 << 10
	body, err := io.ReadAll(io.LimitReader(resp.Body, enough))
	return errors.Join(fmt.Errorf("not ready: %s", strings.TrimSpace(string(body))), err)
}
