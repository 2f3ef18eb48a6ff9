// Package janitor keeps the log tidy, and alone removes anything from it.
//
// It follows the headers of each partition that it acts for, and keeps a ledger: what is retained of each life
// and stream. From the ledger a pure function, the policy, says what has to go. The sweeper
// announces it with trims, entries of the log that name what is removed, and the deleter
// deletes that some time later. The oldest part of a partition goes when its floor moves; what must
// outlive it is copied to the end before. So the log says itself what is missing from it, and
// a ledger that reads it knows all of that: after a restart, and in every janitor.
//
// The limits of a session or stream may be exceeded for a moment by an eighth, and what is
// announced still takes room until it is deleted.
//
// Any number of janitors may run, and share the partitions: the one that has a partition's lease
// acts for it. It follows the partition, begins its generations, announces, copies and deletes.
// When it goes, another one reads the partition from its beginning. Operators ask any of them over
// HTTP what is retained.
//
//	ledger    what a partition holds, and what has to go, stay and be done: pure
//	follow    keeps the ledgers up to date, begins generations, compares new leaders
//	lease     says who acts for which partition
//	ask       asks other janitors for what they hold
//	janitor   sweep.go, announce.go, purge.go and delete.go carry it out; registrar.go and
//	          setter.go keep the registry and the limits; http.go, httplimits.go and httpwatch.go answer,
//	          by answer.go and the other janitors
package janitor

import (
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/janitor/ask"
	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/lease"
	"rejoin/shared/backend"
)

// Service is the janitor. It is safe for concurrent use. Any number may run in an
// installation, and share the partitions.
//
//	Run ──▶ leases        one goroutine a partition, and one for each term: who acts
//	   ├──▶ tail, follow  two a partition that this janitor acts for: keep its ledger
//	   ├──▶ roster        one: which servers of a cluster are there
//	   ├──▶ asker         one, with 4 more and one for each of 4 sweeps: answers other janitors
//	   ├──▶ generations   one: a generation for the server that is connected,
//	   │                  at once, or for those of a cluster; waits for nothing else
//	   ├──▶ sweeper       one: announces what the policy removes, with up to 16 more;
//	   │                  copies control entries, with up to 64 more, and moves the floors
//	   ├──▶ deleter       one: deletes what was announced, with up to 16 more
//	   ├──▶ registrar     one: duties in the session registry
//	   ├──▶ keepBuckets   one: makes the buckets of MCP again that have gone
//	   └──▶ web.Serve     one a connection, if there is a listener
//
//	act ──▶ checker       one a partition: says in the log whether it is damaged
//	   └──▶ setter        one a partition: changes its limits
//
// What changes a partition is done in a term of its lease (lease.Do), and the next term waits for
// it. When Run's context ends, or one of them fails, all others are stopped, and Run returns when
// they have. The ledgers are locked for moments and never across I/O.
type Service struct {
	cfg         Config
	backend     *backend.Backend
	logger      *slog.Logger
	partitions  []*follow.Partition
	keepings    []*keeping    // by partition
	others      chan struct{} // other ledgers are kept than before
	spare       chan struct{} // memory is spare: a ledger is complete, or is kept no more
	freeMemory  func()        // [daemon.Env.FreeMemory]
	leases      *lease.Leases
	roster      *follow.Roster
	generations *follow.Generations
	sweeper     *sweeper
	deleter     *deleter
	registrar   *registrar
	setter      *setter
	edges       *edges
	asker       *ask.Asker
	acting      func() []*follow.Partition     // actingFor; tests replace it
	holders     func() (own []int, vacant int) // [lease.Leases.Holders]; a test replaces it
	app         *fiber.App
	ln          net.Listener // nil without a listener of its own
	wasReady    atomic.Bool
}

// stopGrace is how long requests under way may take at the end.
const stopGrace = 5 * time.Second
