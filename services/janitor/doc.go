// Package janitor keeps the log tidy, and alone removes anything from it.
//
// It follows every partition headers-only and keeps a ledger: what is retained of each life
// and stream. From the ledger a pure function, the policy, says what has to go. The sweeper
// announces it with trims, entries of the log that name what is removed, and the deleter
// deletes that some time later. The head of a partition goes with the floor; what must
// outlive it is copied to the end before. So the log says itself what is missing from it, and
// a ledger that reads it knows all of that: after a restart, and in every janitor.
//
// The limits of a session or stream may be exceeded for a moment by an eighth, and what is
// announced still takes room until it is deleted.
//
// Any number of janitors may run. One of them acts: it has the lease, begins generations,
// announces, copies and deletes. The others stand by with the same ledgers. Operators ask over
// HTTP what is retained.
//
//	lease.go, term.go, leasebucket.go, candidacy.go (pure)             who acts
//	ledger.go, stream.go, control.go, trim.go, hole.go, stretch.go     the ledger: pure
//	policy.go, merge.go, alarm.go, floor.go, duty.go, idle.go          what has to go, stay and be done: pure
//	partition.go, generation.go                                        the ledger's connection to NATS
//	checked.go                                                         what is missing without an explanation is noted here
//	plan.go, sweep.go, early.go, announce.go, purge.go, delete.go      what the policy says is done here
//	registrar.go, setter.go                                            the index of sessions, and the limits
//	http.go, list.go, view.go, ask.go                                  what is told to others
//	edges.go, watch.go, near.go, adminpage                             what is told to those who watch
package janitor
