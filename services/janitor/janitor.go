// Package janitor keeps the log within its limits, and alone removes entries from it.
//
// It follows the headers of each partition that it acts for, and keeps a ledger of the retained events of each life
// and stream. From the ledger a pure function, the policy, computes the removals. The sweeper
// announces them with trims, entries of the log that name the removed events, and the deleter
// deletes these some time later. The oldest part of a partition is removed when its floor moves; control entries
// that must outlive it are copied to the end before. So the log itself names all entries that are missing from it,
// and a ledger that reads it knows them: after a restart, and in every janitor.
//
// The limits of a session or stream may be exceeded for a moment by an eighth, and announced
// entries still take room until they are deleted.
//
// Any number of janitors may run, and share the partitions: the one that has a partition's lease
// acts for it. It follows the partition, begins its generations, announces, copies and deletes.
// When it stops, another one reads the partition from its beginning. Operators ask any of them over
// HTTP about the retained events.
//
//	ledger    the index of a partition, and the removals, copies and duties that follow from it: pure
//	follow    keeps the ledgers up to date, begins generations, compares new leaders
//	lease     elects the janitor that acts for each partition
//	ask       asks the other janitors about their partitions
//	janitor   sweep.go, announce.go, purge.go and delete.go remove entries; registrar.go and
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
//	Run ──▶ leases        one goroutine a partition, and one for each term
//	   ├──▶ tail, follow  two a partition that this janitor acts for: keep its ledger
//	   ├──▶ roster        one: knows which servers of a cluster run
//	   ├──▶ asker         one, with 4 more and one for each of 4 sweeps: answers other janitors
//	   ├──▶ generations   one: a generation for the server that is connected,
//	   │                  at once, or for those of a cluster; waits for nothing else
//	   ├──▶ sweeper       one: announces the removals of the policy, with up to 16 more;
//	   │                  copies control entries, with up to 64 more, and moves the floors
//	   ├──▶ deleter       one: deletes announced entries, with up to 16 more
//	   ├──▶ registrar     one: duties in the session registry
//	   ├──▶ keepBuckets   one: creates missing buckets of MCP again
//	   └──▶ web.Serve     one a connection, if there is a listener
//
//	act ──▶ checker       one a partition: notes in the log whether it is damaged
//	   └──▶ setter        one a partition: changes its limits
//
// Every change of a partition is made in a term of its lease (lease.Do), and the next term waits for
// it. When Run's context ends, or one of the goroutines fails, all others are stopped, and Run returns when
// they have ended. The ledgers are locked for moments and never across I/O.
type Service struct {
	cfg         Config
	backend     *backend.Backend
	logger      *slog.Logger
	partitions  []*follow.Partition
	keepings    []*keeping    // by partition
	others      chan struct{} // the set of kept ledgers has changed
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
