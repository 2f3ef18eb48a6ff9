package web

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/auth"
)

// ClientsConfig configures how clients reach a program. Its fields are flags of the programs
// that serve HTTP to clients.
type ClientsConfig struct {
	// TrustedProxies are the addresses and networks (CIDR) of the proxies in front.
	// Only their X-Forwarded-For is believed. Default: none, and the header
	// is ignored.
	TrustedProxies []string `name:"trusted-proxies" help:"Addresses and networks (CIDR) of the proxies whose X-Forwarded-For is trusted for the client's address; from others it is ignored." placeholder:"CIDR"`

	// HeaderTimeout bounds the time from a request's first byte to the end of its headers,
	// and on a new connection from the connect. Default: 10 s.
	HeaderTimeout time.Duration `name:"header-timeout" help:"Maximum time for the headers of a request to arrive." default:"10s"`

	// BodyTimeout bounds the time from the end of the headers to the end of the body; in
	// NDJSON that of each line. Default: 1 min.
	BodyTimeout time.Duration `name:"body-timeout" help:"Maximum time for the body of a request to arrive; in NDJSON, for each line." default:"1m"`
}

// Validate returns an error about the first flag that makes no sense.
func (cfg ClientsConfig) Validate() error {
	_, err := NewClients(cfg)
	return err
}

// Clients tells clients apart by their addresses, and has the time-outs of their requests. A nil Clients trusts
// no proxy, and has the defaults. It is safe for concurrent use.
type Clients struct {
	cfg     ClientsConfig
	proxies []netip.Prefix
	alike   bool // the service does not tell clients apart
	// unlisted is when a request of a proxy that is not trusted was reported last, as Unix time in
	// seconds; 0 for never.
	unlisted atomic.Int64
}

// NewClients returns the Clients of a configuration, or an error that names the flag. A
// time-out of zero is the default.
func NewClients(cfg ClientsConfig) (*Clients, error) {
	if cfg.HeaderTimeout < 0 || cfg.BodyTimeout < 0 {
		return nil, errors.New("--header-timeout and --body-timeout must not be negative")
	}
	clients := &Clients{cfg: cfg}
	for _, text := range cfg.TrustedProxies {
		p, err := parseNetwork(text)
		if err != nil {
			return nil, fmt.Errorf("--trusted-proxies takes addresses and networks such as 10.0.0.0/8, and not %q", text)
		}
		clients.proxies = append(clients.proxies, p)
	}
	return clients, nil
}

// parseNetwork reads an address or a network. An IPv4 network in IPv6 is the IPv4 network.
func parseNetwork(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, err
		}
		addr = plain(addr)
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err == nil && p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), err
}

// HeaderTimeout is how long the headers of a request may take to arrive.
func (cl *Clients) HeaderTimeout() time.Duration {
	if cl == nil {
		return defaultHeaderTimeout
	}
	return cmp.Or(cl.cfg.HeaderTimeout, defaultHeaderTimeout)
}

const defaultHeaderTimeout = 10 * time.Second

// bodyTimeout is how long a body, or each part of one, may take to arrive; see [Body.Part].
func (cl *Clients) bodyTimeout() time.Duration { return cmp.Or(cl.cfg.BodyTimeout, time.Minute) }

// Address returns the address of a request's client: the peer's, or, when that is a
// trusted proxy, the one that X-Forwarded-For ends with, without the trusted proxies at
// its end. Where an element of the header is no address, the last address after it
// counts. An IPv4 address in IPv6 is returned as IPv4, and no address has a zone.
func (cl *Clients) Address(c *fiber.Ctx) netip.Addr {
	peer := peerOf(c.Context().RemoteAddr())
	if cl == nil || len(cl.proxies) == 0 {
		return peer
	}
	return cl.address(peer, c.Request().Header.PeekAll(fiber.HeaderXForwardedFor))
}

// address is [Clients.Address] for a peer and the header's lines, which are one list.
func (cl *Clients) address(peer netip.Addr, forwarded [][]byte) netip.Addr {
	client := peer
	for _, line := range slices.Backward(forwarded) {
		for rest, more := line, true; more; {
			if !cl.trusts(client) {
				return client
			}
			var last []byte
			rest, last, more = cutLast(rest)
			addr, ok := parseForwarded(string(bytes.Trim(last, " \t")))
			if !ok {
				return client
			}
			client = addr
		}
	}
	return client
}

// Peer returns the name under which a connection counts before there is a request: the
// peer's address as [Counted]; empty for a trusted proxy, whose connections are of many clients.
func (cl *Clients) Peer(addr net.Addr) string {
	peer := peerOf(addr)
	if !peer.IsValid() || cl != nil && cl.trusts(peer) {
		return ""
	}
	return Counted(peer).String()
}

// cutLast cuts off the last element of a list.
func cutLast(list []byte) (before, last []byte, more bool) {
	i := bytes.LastIndexByte(list, ',')
	return list[:max(i, 0)], list[i+1:], i >= 0
}

func (cl *Clients) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(cl.proxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// parseForwarded reads an address, with or without a port.
func parseForwarded(text string) (netip.Addr, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return plain(addr), true
	}
	if at, err := netip.ParseAddrPort(text); err == nil {
		return plain(at.Addr()), true
	}
	inner, ok := strings.CutPrefix(text, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	addr, err := netip.ParseAddr(inner)
	return plain(addr), ok && closed && err == nil && addr.Is6()
}

// Client returns the name under which a request counts in its client's share: the subject of its token once
// [Access.Authenticate] has accepted it, or else its address as [Counted].
func (cl *Clients) Client(c *fiber.Ctx) string {
	if grants, ok := c.Locals(grantsKey{}).(auth.Grants); ok {
		return "subject " + grants.Subject
	}
	return Counted(cl.Address(c)).String()
}

// watch reports, once a minute, requests that come from a proxy that is not trusted.
func (cl *Clients) watch(c *fiber.Ctx, log *slog.Logger) {
	if cl.alike || len(c.Request().Header.Peek(fiber.HeaderXForwardedFor)) == 0 {
		return
	}
	peer := peerOf(c.Context().RemoteAddr())
	if !peer.IsValid() || cl.trusts(peer) {
		return
	}
	now := time.Now().Unix()
	if before := cl.unlisted.Load(); now-before >= 60 && cl.unlisted.CompareAndSwap(before, now) {
		log.Warn("requests come from a proxy that is not in --trusted-proxies: all clients behind it count as one, with one client's share", "proxy", peer.String())
	}
}

// peerOf returns the address of a connection's other end; the zero Addr when that is not of TCP.
func peerOf(addr net.Addr) netip.Addr {
	tcp, _ := addr.(*net.TCPAddr)
	return plain(tcp.AddrPort().Addr())
}

func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// Counted returns the address under which a client is counted: of an IPv6 address its /64
// network, of which a client has all addresses.
func Counted(addr netip.Addr) netip.Addr {
	if !addr.Is6() {
		return addr
	}
	return netip.PrefixFrom(addr.WithZone(""), 64).Masked().Addr()
}
