package standalone

import (
	"cmp"
	"errors"
	"fmt"
	"net"

	"github.com/alecthomas/kong"

	"rejoin/services/bridge"
	"rejoin/services/ingest"
	"rejoin/services/janitor"
	edge "rejoin/services/sse-edge"
	"rejoin/shared/daemon"
	"rejoin/shared/flagtype"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// Config holds the flags of the standalone program: those of all services, and
// its own.
type Config struct {
	daemon.Config

	// Data is the folder that holds everything. Default: ./data.
	Data string `default:"./data" help:"Folder of the log; created if missing." placeholder:"FOLDER"`

	// NATSAddr is the address of the embedded NATS server for other programs. Default:
	// 127.0.0.1:4222 without access control. With it, none; when an address is given, they
	// need the key in the data folder.
	NATSAddr string `name:"nats-addr" help:"Address of the embedded NATS server; port 0 selects a free port. With --auth=jwt, clients need the key nats.nk in --data (default: 127.0.0.1:4222, none with --auth=jwt)." placeholder:"HOST:PORT"`

	// MinFreeBytes is the free space below which the program does not start. Default: 256 MiB.
	MinFreeBytes flagtype.Bytes `default:"256MiB" help:"Free disk space that the data folder needs at start." placeholder:"BYTES"`

	Edge     edge.Config             `embed:""`
	Ingest   ingest.Config           `embed:""`
	Janitor  janitor.Config          `embed:""`
	Bridge   bridge.Config           `embed:""`
	Log      janitor.LogFlags        `embed:""`
	Access   web.AccessConfig        `embed:""`
	Clients  web.ClientsConfig       `embed:""`
	Streams  session.StreamsOverride `embed:""`
	Sessions session.LimitsConfig    `embed:""`
}

// Validate returns an error that names the first flag whose value makes no sense.
func (c Config) Validate() error {
	switch {
	case c.Data == "":
		return errors.New("--data is empty")
	case c.MinFreeBytes < 0:
		return errors.New("--min-free-bytes must not be negative")
	case c.Janitor.JanitorAddr == "":
		return errors.New("--janitor-addr is empty")
	case c.Log.Replicas > 1:
		return fmt.Errorf("--replicas=%d needs a NATS cluster, and one program has one NATS server; leave it out", c.Log.Replicas)
	}
	return cmp.Or(c.Edge.Validate(), c.Ingest.Validate(), c.Janitor.Validate(), c.Bridge.Validate(), c.Log.Validate(), c.Access.Validate(), c.Clients.Validate(), c.Streams.Validate(), c.Sessions.Validate(), daemon.CheckAddr(c.NATSAddr, "--nats-addr"), c.checkPorts())
}

// checkPorts reports two flags with the same address. The start finds the same port under another name of the
// machine, when it listens.
func (c Config) checkPorts() error {
	flags := map[string]string{}
	for _, a := range c.addrs() {
		if _, port, err := net.SplitHostPort(a.addr); err != nil || port == "0" {
			continue // checked already, or no port, or any free one
		}
		if other, taken := flags[a.addr]; taken {
			return fmt.Errorf("%s and %s are the same", other, a.flag)
		}
		flags[a.addr] = a.flag
	}
	return nil
}

// addr is an address, and the flag that it comes from.
type addr struct{ addr, flag string }

// addrs returns the addresses that the program listens on; empty for none.
func (c Config) addrs() []addr {
	return []addr{
		{c.Edge.EdgeAddr, "--edge-addr"},
		{c.Ingest.IngestAddr, "--ingest-addr"},
		{c.Janitor.JanitorAddr, "--janitor-addr"},
		{c.NATSAddr, "--nats-addr"},
		{c.AdminAddr, "--admin-addr"},
	}
}

// Check reports the problems that would keep the program from starting, besides those that Validate
// reports, a line for each.
func (c *Config) Check() error {
	_, clientsErr := web.NewClients(c.Clients)
	return errors.Join(c.Access.Check(), clientsErr, c.Edge.TLS.Check(), c.checkReach())
}

// checkReach reports the first address that other machines reach, and that has no access
// control.
func (c *Config) checkReach() error {
	return cmp.Or(
		c.Access.CheckListen(c.Edge.EdgeAddr, "--edge-addr"),
		c.Access.CheckListen(c.Ingest.IngestAddr, "--ingest-addr"),
		c.Access.CheckListen(c.Janitor.JanitorAddr, "--janitor-addr"),
		c.Access.CheckListen(c.NATSAddr, "--nats-addr"),
	)
}

// Options are the parser's options: the defaults of the services' flags here, where
// somebody tries things out and waits for Ctrl-C to be done.
func Options() []kong.Option {
	defaults := map[string]string{"drain": "2s", "playground": "true", "admin-page": "true", "nats-sync-interval": "10s"}
	helps := map[string]string{
		"max-bytes":          "Maximum size of a new log; -1 for unlimited (default: half of the disk's free space).",
		"nats-sync-interval": "How often the embedded NATS server syncs its files to disk; announced entries are deleted after twice as long.",
	}
	return []kong.Option{kong.PostBuild(func(k *kong.Kong) error {
		for _, f := range k.Model.Flags {
			if d, ok := defaults[f.Name]; ok {
				f.Default, f.HasDefault = d, true
			}
			if h, ok := helps[f.Name]; ok {
				f.Help = h
			}
		}
		return nil
	})}
}
