package system

import "rejoin/bench/load"

// Server is something that broadcasts: Rejoin, a raw server, or a peer.
type Server interface {
	// Target returns its address and paths for clients.
	Target() load.Target
	load.Sink
	// Close ends it.
	Close()
}
