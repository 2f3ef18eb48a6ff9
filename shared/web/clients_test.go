package web

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/must"
)

func newClients(t testing.TB, proxies ...string) *Clients {
	t.Helper()
	return must.Value(NewClients(ClientsConfig{TrustedProxies: proxies}))(t)
}

func TestClients_LastUntrustedAddress(t *testing.T) {
	proxies := newClients(t, "10.0.0.0/8", "192.0.2.1", "2001:db8:ffff::/48", "::ffff:172.16.0.0/108", "::1")
	for name, tt := range map[string]struct {
		peer, want string
		forwarded  []string
	}{
		"no header":                     {"10.0.0.1", "10.0.0.1", nil},
		"peer is no proxy":              {"198.51.100.1", "198.51.100.1", []string{"203.0.113.1"}},
		"peer beside the network":       {"11.0.0.1", "11.0.0.1", []string{"203.0.113.1"}},
		"one address":                   {"10.0.0.1", "203.0.113.1", []string{"203.0.113.1"}},
		"spoofed before":                {"10.0.0.1", "203.0.113.1", []string{"127.0.0.1, 8.8.8.8, 203.0.113.1"}},
		"spoofed as a proxy before":     {"10.0.0.1", "203.0.113.1", []string{"10.0.0.9, 203.0.113.1"}},
		"proxies behind":                {"10.0.0.1", "203.0.113.1", []string{"8.8.8.8, 203.0.113.1, 10.2.3.4,192.0.2.1"}},
		"several lines":                 {"10.0.0.1", "203.0.113.1", []string{"8.8.8.8", "203.0.113.1", "10.2.3.4"}},
		"several lines, mixed":          {"10.0.0.1", "203.0.113.1", []string{"8.8.8.8, 203.0.113.1", "10.2.3.4, 192.0.2.1"}},
		"proxies only":                  {"10.0.0.1", "10.0.0.3", []string{"10.0.0.3, 10.0.0.2"}},
		"empty":                         {"10.0.0.1", "10.0.0.1", []string{""}},
		"garbage":                       {"10.0.0.1", "10.0.0.1", []string{"203.0.113.1, unknown"}},
		"garbage before a proxy":        {"10.0.0.1", "10.0.0.2", []string{"203.0.113.1, _hidden, 10.0.0.2"}},
		"garbage before a client":       {"10.0.0.1", "203.0.113.1", []string{"<script>, 203.0.113.1"}},
		"an empty entry":                {"10.0.0.1", "10.0.0.2", []string{"203.0.113.1,, 10.0.0.2"}},
		"an empty line":                 {"10.0.0.1", "10.0.0.2", []string{"203.0.113.1", "", "10.0.0.2"}},
		"spaces and tabs":               {"10.0.0.1", "203.0.113.1", []string{" \t203.0.113.1\t "}},
		"another space":                 {"10.0.0.1", "10.0.0.1", []string{"\u00a0203.0.113.1"}},
		"with a port":                   {"10.0.0.1", "203.0.113.1", []string{"203.0.113.1:4711"}},
		"with a port too large":         {"10.0.0.1", "10.0.0.1", []string{"203.0.113.1:65536"}},
		"octets with zeros":             {"10.0.0.1", "10.0.0.1", []string{"203.0.113.010"}},
		"a number":                      {"10.0.0.1", "10.0.0.1", []string{"3405803777"}},
		"IPv6":                          {"10.0.0.1", "2001:db8::1", []string{"2001:db8::1"}},
		"IPv6 in brackets":              {"10.0.0.1", "2001:db8::1", []string{"[2001:db8::1]"}},
		"IPv6 with a port":              {"10.0.0.1", "2001:db8::1", []string{"[2001:db8::1]:443"}},
		"IPv6 with a zone":              {"10.0.0.1", "fe80::1", []string{"fe80::1%anything"}},
		"IPv6 proxies":                  {"::1", "2001:db8::1", []string{"2001:db8::1, 2001:db8:ffff::7"}},
		"brackets that do not close":    {"10.0.0.1", "10.0.0.1", []string{"[2001:db8::1"}},
		"IPv4 in brackets":              {"10.0.0.1", "10.0.0.1", []string{"[203.0.113.1]"}},
		"IPv4 in IPv6":                  {"10.0.0.1", "203.0.113.1", []string{"::ffff:203.0.113.1"}},
		"IPv4 in IPv6 with a port":      {"10.0.0.1", "203.0.113.1", []string{"[::ffff:203.0.113.1]:1"}},
		"proxy's IPv4 in IPv6":          {"10.0.0.1", "203.0.113.1", []string{"203.0.113.1, ::ffff:10.0.0.2"}},
		"network given as IPv4 in IPv6": {"172.16.3.4", "203.0.113.1", []string{"203.0.113.1"}},
	} {
		var lines [][]byte
		for _, line := range tt.forwarded {
			lines = append(lines, []byte(line))
		}
		if got := proxies.address(netip.MustParseAddr(tt.peer), lines); got != netip.MustParseAddr(tt.want) {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// Over a real connection: without the flag no header counts, with it the proxy's.
func TestClients_TrustedProxiesOnly(t *testing.T) {
	t.Parallel()
	for want, some := range map[string][]*Clients{
		"127.0.0.1":   {nil, newClients(t), newClients(t, "203.0.113.7", "198.51.100.1")},
		"203.0.113.7": {newClients(t, "127.0.0.0/8"), newClients(t, "127.0.0.1")},
	} {
		for _, clients := range some {
			app := NewApp(Config{Service: "test"})
			Mount(app, Route{Method: "GET", Path: "/", Handler: func(c *fiber.Ctx) error {
				return c.SendString(clients.Address(c).String())
			}})
			r := do(t, serve(t, app), "GET", "/", header("X-Forwarded-For", "198.51.100.1", "X-Forwarded-For", "203.0.113.7"))
			if r.body != want {
				t.Errorf("%v: %q, want %s", clients, r.body, want)
			}
		}
	}
}

func TestClients_InvalidNetworks(t *testing.T) {
	for _, text := range []string{"", "10.0.0.0/33", "10.0.0", "proxy.example", "10.0.0.0/8 ", "10.0.0.1:80", "/8", "*"} {
		if err := (ClientsConfig{TrustedProxies: []string{"::1", text}}).Validate(); err == nil || !strings.Contains(err.Error(), "--trusted-proxies") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestClients_IPv6Network(t *testing.T) {
	for addr, want := range map[string]string{
		"203.0.113.1": "203.0.113.1", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "2001:db8:1:3::": "2001:db8:1:3::", "::1": "::",
	} {
		if got := Counted(netip.MustParseAddr(addr)); got != netip.MustParseAddr(want) {
			t.Errorf("%s counts as %s, want %s", addr, got, want)
		}
	}
	if got := Counted(netip.Addr{}); got.IsValid() {
		t.Errorf("no address counts as %s", got)
	}
}

// Elements before the address that the trusted proxy saw change nothing, and the result
// is an address that was in the list, in one form.
func FuzzForwardedAddress(f *testing.F) {
	for _, seed := range []string{"203.0.113.1", "10.0.0.1, [2001:db8::1]:443", "unknown", "::ffff:10.0.0.1%x,\n,", "[::1]"} {
		f.Add([]byte(seed))
	}
	proxies := newClients(f, "10.0.0.0/8")
	peer, client := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.9")
	f.Fuzz(func(t *testing.T, line []byte) {
		got := proxies.address(peer, [][]byte{line})
		if !got.IsValid() || got.Is4In6() || got.Zone() != "" {
			t.Errorf("%q: %v", line, got)
		}
		for _, sep := range []string{",", ", "} {
			spoofed := bytes.Join([][]byte{line, []byte("203.0.113.9, 10.0.0.2")}, []byte(sep))
			if got := proxies.address(peer, [][]byte{spoofed}); got != client {
				t.Errorf("%q: %v", spoofed, got)
			}
		}
		if got := proxies.address(peer, [][]byte{line, []byte("203.0.113.9")}); got != client {
			t.Errorf("%q in a line of its own: %v", line, got)
		}
	})
}

// A client that sends X-Forwarded-For itself keeps its share, and others theirs.
func TestUnlistedProxy_ClientsCount(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	clients := must.Value(NewClients(ClientsConfig{}))(t)
	app := NewApp(Config{Service: "test", Log: slog.New(slog.NewTextHandler(&log, nil)), Clients: clients})
	Mount(app, Route{Method: "GET", Path: "/", Handler: func(c *fiber.Ctx) error { return c.SendString(clients.Client(c)) }})
	url := serve(t, app)
	for _, forwarded := range []string{header("X-Forwarded-For", "192.0.2.1"), header("X-Forwarded-For", "192.0.2.2"), ""} {
		if r := do(t, url, "GET", "/", forwarded); r.body != "127.0.0.1" {
			t.Errorf("with %v, the client counts as %q", forwarded, r.body)
		}
	}
	if n := strings.Count(log.String(), "--trusted-proxies"); n != 1 {
		t.Errorf("%d lines of the log are about it: %s", n, &log)
	}
}

// A service without clients' shares, such as a janitor, logs nothing about proxies.
func TestUnlistedProxy_NobodyCounts(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	app := NewApp(Config{Service: "test", Log: slog.New(slog.NewTextHandler(&log, nil))})
	Mount(app, Route{Method: "GET", Path: "/", Handler: echo("there")})
	if r := do(t, serve(t, app), "GET", "/", header("X-Forwarded-For", "192.0.2.1")); r.status != http.StatusOK || log.Len() > 0 {
		t.Errorf("%d, and it says %s", r.status, &log)
	}
}
