package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// healthcheckTimeout bounds the question whether a program is ready.
const healthcheckTimeout = 3 * time.Second

// checkReady asks the admin port at addr, as it is configured, whether its program is
// ready: nil when it is. What listens on all addresses is asked on the loopback interface.
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
