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
//	ledger    what a partition holds, and what has to go, stay and be done: pure
//	follow    keeps the ledgers up to date, begins generations, compares new leaders
//	lease     says who acts
//	janitor   sweep.go, early.go, announce.go, purge.go, delete.go carry it out; registrar.go and
//	          setter.go keep the index of sessions and the limits; http.go and watch.go answer
package janitor
