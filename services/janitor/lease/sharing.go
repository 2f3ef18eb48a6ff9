package lease

import (
	"maps"
	"slices"
	"time"
)

// sharing has the holders of the partitions as a janitor knows them, and computes how many it should hold
// itself. It has no clock and no network, and may be wrong: the leases decide.
type sharing struct {
	me      string
	lease   time.Duration    // how long one is valid without renewal
	peers   map[string]*peer // the others
	holders []holding        // by partition
	kept    []bool           // by partition: this janitor held it last, as far as is known
	there   bool             // the bucket has answered before
	back    Instant          // when it answered again, after a new connection or without answers
	// returning is for how long after that the partitions are left to the janitors that held them.
	returning time.Duration
}

// peer is another janitor.
type peer struct{ first, last Instant }

// holding is the holder of a partition.
type holding struct {
	by string // empty: no janitor, as far as is known
	at Instant
}

// unknownHolder stands for a holder whose record cannot be read.
const unknownHolder = "unknown"

func newSharing(me string, partitions int, lease time.Duration) sharing {
	return sharing{me: me, lease: lease, peers: map[string]*peer{}, holders: make([]holding, partitions), kept: make([]bool, partitions), returning: returning}
}

// returning is for how long after the bucket answers again a janitor leaves the partitions to the others that
// they held before: after a restart of NATS none is held, nor after a lease in which the bucket had no leader, and
// one that has to be read again by another janitor costs more. All connect within half a second; publishers wait
// three for the generation that a partition's janitor begins.
const returning = time.Second

// answers notes that the bucket answers, for the first time or again.
func (s *sharing) answers(now Instant) {
	if s.there {
		s.back = now
	}
	s.there = true
}

// forget begins again with a new connection, which brings all entries of the bucket again.
func (s *sharing) forget(now Instant) {
	clear(s.peers)
	for p := range s.holders {
		s.holders[p] = holding{at: now}
	}
}

// hear notes the presence of a janitor.
func (s *sharing) hear(id string, now Instant) {
	switch m := s.peers[id]; {
	case id == s.me:
	case m == nil:
		s.peers[id] = &peer{now, now}
	default:
		m.last = now
	}
}

// held notes that a janitor holds a partition.
func (s *sharing) held(p int, by string, now Instant) {
	if by != "" && by != unknownHolder {
		s.hear(by, now)
	}
	s.holders[p] = holding{by, now}
	s.kept[p] = by == s.me || by == "" && s.kept[p]
}

// expire forgets janitors that were not heard of for a lease.
func (s *sharing) expire(now Instant) {
	maps.DeleteFunc(s.peers, func(_ string, m *peer) bool { return m.last.Until(now) >= s.lease })
	for p, h := range s.holders {
		if h.by != "" && h.at.Until(now) >= s.lease {
			s.holders[p] = holding{at: now}
		}
	}
}

// leave forgets a janitor that has stopped or lost its connection.
func (s *sharing) leave(id string, now Instant) {
	delete(s.peers, id)
	for p, h := range s.holders {
		if h.by == id {
			s.holders[p] = holding{at: now}
		}
	}
}

// counts returns how many partitions this janitor and each of the others hold, of those that have
// been there for atLeast.
func (s *sharing) counts(mine int, now Instant, atLeast time.Duration) (others []int, free int) {
	free = len(s.holders) - mine
	for id, m := range s.peers {
		if m.first.Until(now) < atLeast {
			continue
		}
		n := 0
		for _, h := range s.holders {
			if h.by == id {
				n++
			}
		}
		others, free = append(others, n), free-n
	}
	return others, free
}

// orphaned is after how many leases a partition without a holder may be taken by any janitor, whatever share
// another one has.
const orphaned = 3

// wants reports whether this janitor, which holds so many partitions, should try to get another. Any
// janitor may take the partitions that remain when all have their least share.
func (s *sharing) wants(p, mine int, now Instant) bool {
	if s.back != (Instant{}) && !s.kept[p] && s.back.Until(now) < s.returning {
		return false
	}
	s.expire(now)
	others, _ := s.counts(mine, now, 0)
	least, most := s.shares(len(others) + 1)
	if mine < least || mine < most && (len(others) == 0 || slices.Min(others) >= least) {
		return true
	}
	h := s.holders[p]
	return h.by == "" && h.at.Until(now) >= orphaned*s.lease
}

// shares returns how many partitions each of n janitors should hold at least and at most.
func (s *sharing) shares(n int) (least, most int) {
	return len(s.holders) / n, (len(s.holders) + n - 1) / n
}

// surplus returns how many of its partitions this janitor should leave to others. A new janitor
// gets its share when it has stayed for a lease: each move is a ledger that is built
// again.
func (s *sharing) surplus(mine int, now Instant) int {
	s.expire(now)
	others, free := s.counts(mine, now, s.lease)
	least, most := s.shares(len(others) + 1)
	switch {
	case mine > most:
		return mine - most
	case mine > least && free <= 0 && len(others) > 0 && slices.Min(others) < least:
		return 1
	}
	return 0
}
