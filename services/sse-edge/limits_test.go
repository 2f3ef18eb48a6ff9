package edge

import (
	"testing"

	"rejoin/services/web"
	"rejoin/shared/eventlog"
)

// Who is counted is the peer, whatever it says, unless it is a trusted proxy. Clients of
// one IPv6 network are one.
func TestForwardedAddressesCountFromTrustedProxiesOnly(t *testing.T) {
	trusting, err := web.NewClients(web.ClientsConfig{TrustedProxies: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, eventlog.Settings{})
	for name, tt := range map[string]struct {
		clients *web.Clients
		second  string
		let     bool
	}{
		"without the flag":        {nil, "2001:db8:0:2::1", false},
		"another client":          {trusting, "2001:db8:0:2::1", true},
		"the same client":         {trusting, "2001:db8:0:1::1", false},
		"the same network":        {trusting, "2001:db8:0:1:ffff::", false},
		"a spoofed address first": {trusting, "203.0.113.1, 2001:db8:0:1::1", false},
	} {
		t.Run(name, func(t *testing.T) {
			url := f.edge(func(c *Config) { c.MaxAddressConnections, c.Clients = 1, tt.clients })
			first := subscribe(t, url+streamPath, "X-Forwarded-For", "2001:db8:0:1::1")
			first.next("connect")
			second := subscribe(t, url+streamPath, "X-Forwarded-For", tt.second)
			if _, err := second.dec.Next(); (err == nil) != tt.let {
				t.Errorf("the second client: %v", err)
			}
		})
	}
}
