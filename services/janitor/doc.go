// Package janitor keeps the log tidy and knows what is gone from it.
//
// It follows every partition headers-only and keeps a ledger: what is retained of
// each session and stream, and up to where events were removed, by whomever. From
// the ledger a pure function, the policy, says what has to go; one place, the
// sweep, deletes it. Edges ask the ledger over NATS whether a cursor is complete,
// operators ask it over HTTP what is retained.
//
// Any number may run. One of them acts: it has the lease, begins generations, deletes,
// and answers. The others stand by with ledgers of their own.
//
//	lease.go, term.go, leasebucket.go, candidacy.go (pure)                    who acts
//	news.go, takeover.go                                                      what a standby knows of what was deleted
//	ledger.go, stream.go, retire.go, doubt.go, doom.go, alarm.go, answer.go   the ledger: pure
//	policy.go, merge.go, overrides.go, duty.go, idle.go                       the policy: pure
//	partition.go, generation.go, trim.go, trimbucket.go                       the ledger's connection to NATS
//	plan.go, sweep.go, early.go, batch.go, leisure.go, registrar.go           what the policy says is done here
//	marks.go, http.go, list.go, view.go, ask.go                               what is told to others
//	edges.go, watch.go, near.go, adminpage                                    what is told to those who watch
package janitor
