// Package proxy has the configuration of the proxy of deploy/, for tests and measurements that run it
// beside edges of their own.
package proxy

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed haproxy.cfg
var config string

// Local returns the configuration for an HAProxy from version 2.6 on, on a machine without containers:
// health is its address for health checks, edges are the addresses of edges, which are not checked.
// Without edges, those of the configuration stay. REJOIN_PROXY_BIND is the address at which it
// listens.
func Local(health string, edges ...string) string {
	old := []string{
		"127.0.0.1:8404", health,
		"\tdefault-server hash-key addr\n", "", // which version 2.6 does not know
	}
	if len(edges) > 0 {
		var servers strings.Builder
		for i, addr := range edges {
			fmt.Fprintf(&servers, "\tserver edge%d %s no-check\n", i, addr)
		}
		old = append(old, "\tserver-template edge 1-16 \"sse-edge${REJOIN_PROXY_DOMAIN}:8080\" port 9080\n", servers.String())
	}
	return strings.NewReplacer(old...).Replace(config)
}
