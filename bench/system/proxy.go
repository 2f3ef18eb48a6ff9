package system

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"rejoin/bench/measure"
	"rejoin/deploy/proxy"
)

// StartProxy starts the proxy of deploy/ before edges, and returns its address.
func StartProxy(ctx context.Context, p *Programs, edges []*Program) (addr string, stop func(), _ error) {
	var addrs []string
	for _, e := range edges {
		addrs = append(addrs, strings.TrimPrefix(e.Edge, "http://"))
	}
	ports := [2]string{}
	for i := range ports {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return "", nil, err
		}
		ports[i] = l.Addr().String()
		_ = l.Close()
	}
	file := filepath.Join(p.dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(proxy.Local(ports[1], addrs...)), 0o600); err != nil {
		return "", nil, err
	}
	cmd := command(ctx, "haproxy", "-db", "-f", file)
	cmd.Env = append(os.Environ(), "REJOIN_PROXY_BIND="+ports[0])
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", ports[0])
		if err == nil {
			_ = conn.Close()
			return ports[0], func() { End(cmd) }, nil
		}
		if err := measure.Pause(ctx, 20*time.Millisecond); err != nil {
			End(cmd)
			return "", nil, err
		}
	}
}
