package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Listen opens a TCP listener on addr, host:port; port 0 takes any free
// port. An error is one sentence for the user that names flag, the
// command-line flag that set addr, such as "--edge-addr".
func Listen(addr, flag string) (net.Listener, error) {
	return ListenWith(net.ListenConfig{}, addr, flag)
}

// ListenWith is [Listen] with options for the socket.
func ListenWith(lc net.ListenConfig, addr, flag string) (net.Listener, error) {
	host, port, err := splitAddr(addr, flag)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "all addresses"
	}
	ln, err := lc.Listen(context.Background(), "tcp", addr)
	switch {
	case err == nil:
		return ln, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %s on %s is taken by another program; stop it or choose another with %s", port, host, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("port %s on %s may not be opened by this user; choose one above 1023 with %s", port, host, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("this machine has no address %s; choose another with %s", host, flag)
	default:
		return nil, fmt.Errorf("cannot listen on %s (%s): %w", addr, flag, err)
	}
}

// CheckAddr returns an error that names the flag for an address that [Listen] would refuse on
// every machine. An empty address is no error, since not every program refuses it.
func CheckAddr(addr, flag string) error {
	if addr == "" {
		return nil
	}
	_, _, err := splitAddr(addr, flag)
	return err
}

func splitAddr(addr, flag string) (host, port string, err error) {
	if host, port, err = net.SplitHostPort(addr); err == nil {
		_, err = net.LookupPort("tcp", port) //nolint:noctx // it asks nobody
	}
	if err != nil {
		return "", "", fmt.Errorf("%s must be HOST:PORT, not %q: %w", flag, addr, err)
	}
	return host, port, nil
}
