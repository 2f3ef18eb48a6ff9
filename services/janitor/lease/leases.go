// Package lease elects one of several janitors to act for a partition: the one that holds its lease
// in NATS, for as long as it renews it. Its work in that time has a context that ends with the lease.
// Janitors that run at the same time hold about as many partitions each.
package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/clocks"
	"rejoin/shared/inbox"
	"rejoin/shared/natsconn"
)

// Default is the lease of a configuration without one.
const Default = 5 * time.Second

// New returns the leases of some partitions, of a length, for one janitor. clock is the time of day:
// a lease is over when it has expired by that or by the monotonic clock.
func New(length time.Duration, nc *nats.Conn, partitions, replicas int, clock func() time.Time, logger *slog.Logger) (*Leases, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(length))
	if err != nil {
		return nil, err
	}
	id := rand.Text()
	s := &Leases{
		nc: nc, js: js, replicas: replicas, id: id, logger: logger, Elsewhere: func(int) {},
		now:     clocks.New(clock),
		sharing: newSharing(id, partitions, length),
	}
	for p := range partitions {
		s.all = append(s.all, &Lease{
			of: s, partition: p, key: partitionKey + strconv.Itoa(p),
			state: candidacy{id: id, lease: length}, wake: make(chan struct{}, 1),
		})
	}
	return s, nil
}

// Do calls f with the context of the term in which this janitor acts for a partition, and returns
// its error. did is false when there is no such term: then f was not called. The term is over for
// others when f has returned.
func (s *Leases) Do(p int, f func(ctx context.Context) error) (did bool, err error) {
	s.mu.Lock()
	t := s.all[p].term
	if t == nil || t.Ctx.Err() != nil {
		s.mu.Unlock()
		return false, nil
	}
	t.uses.Add(1)
	s.mu.Unlock()
	defer t.uses.Done()
	err = f(t.Ctx)
	if err != nil && t.Ctx.Err() != nil && !errors.Is(err, ErrNotActing) {
		err = fmt.Errorf("%w: %w", ErrNotActing, err)
	}
	return true, err
}

// Holders returns the partitions that this janitor acts for, and how many have no janitor, as far as it
// knows, at one time.
func (s *Leases) Holders() (own []int, vacant int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sharing.expire(s.now())
	for p, l := range s.all {
		by := s.sharing.holders[p].by
		switch {
		case l.term != nil && l.term.Ctx.Err() == nil:
			own = append(own, p)
		case l.term != nil || by == "" || by == s.id: // that has ended, or begins
			vacant++
		}
	}
	return own, vacant
}

// Run competes for the leases until ctx ends, and calls act for each term with a context that ends
// with it. It returns act's error, if that is not due to the end.
func (s *Leases) Run(ctx context.Context, act func(ctx context.Context, partition int) error) error {
	alive, err := s.nc.Subscribe(holderSubject(s.id), func(msg *nats.Msg) {
		if inbox.Is(msg.Reply) {
			_ = msg.Respond(nil)
		}
	})
	if err != nil {
		return fmt.Errorf("cannot subscribe to %s: %w", holderSubject(s.id), err)
	}
	defer func() { _ = alive.Unsubscribe() }() // the connection may be closed already
	connected := s.nc.StatusChanged(nats.CONNECTED)
	defer s.nc.RemoveStatusListener(connected)
	for ctx.Err() == nil {
		if s.nc.IsConnected() {
			connection, done := natsconn.While(ctx, s.nc)
			err := s.compete(connection, ctx, act)
			done()
			if err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-connected:
		}
	}
	return nil
}

// compete is run for each connection, with which ctx ends. program ends with the program
// alone.
func (s *Leases) compete(ctx, program context.Context, act func(context.Context, int) error) error {
	s.mu.Lock()
	s.complained, s.answered = false, false
	s.sharing.forget(s.now())
	s.mu.Unlock()
	for !s.open(ctx) {
		if !natsconn.Pause(ctx, shortRetry) {
			return nil
		}
	}
	var (
		others, leases sync.WaitGroup
		errs           error
	)
	ctx, stop := context.WithCancel(ctx)
	others.Go(func() { s.follow(ctx) })
	others.Go(func() { s.keepPresence(ctx) })
	for _, l := range s.all {
		leases.Go(func() {
			err := l.compete(ctx, program, func(ctx context.Context) error { return act(ctx, l.partition) })
			if err != nil {
				s.mu.Lock()
				errs = errors.Join(errs, err)
				s.mu.Unlock()
				stop()
			}
		})
	}
	leases.Wait()
	stop()
	others.Wait()
	if program.Err() != nil {
		s.withdrawPresence(program)
	}
	s.logPartitions()
	return errs
}

// keepPresence announces this janitor, forgets those that are disconnected, and leaves the partitions above its
// share to others, until ctx ends.
func (s *Leases) keepPresence(ctx context.Context) {
	for n := 0; ; n++ {
		pause := s.pause()
		for failing := time.Now(); !s.announcePresence(ctx); {
			s.logPartitions()
			if !natsconn.Pause(ctx, min(pause, shortRetry)) {
				return
			}
			if length := s.length(); time.Since(failing) > length { // a lease of a bucket that was deleted is over
				within, cancel := context.WithTimeout(ctx, pause) // no longer than an announcement: the bucket may be there
				_, _ = s.ensure(within, length)                   // or it is tried again
				cancel()
				failing = time.Now()
			}
		}
		s.share()
		if n > 0 { // the first entries of the bucket are still arriving
			s.probePeers(ctx)
		}
		s.logPartitions()
		if !natsconn.Pause(ctx, pause) {
			return
		}
	}
}

// share has leases given back that are more than this janitor's share.
func (s *Leases) share() {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := slices.DeleteFunc(s.mine(), func(l *Lease) bool { return l.yields })
	for range s.sharing.surplus(len(mine), s.now()) {
		l := mine[len(mine)-1]
		mine = mine[:len(mine)-1]
		l.yields = true
		l.ring()
	}
}

// probePeers asks the other janitors whether they are connected: in a server that is alone, one that
// is not has lost its leases.
func (s *Leases) probePeers(ctx context.Context) {
	s.mu.Lock()
	ids := slices.Collect(maps.Keys(s.sharing.peers))
	s.mu.Unlock()
	for _, id := range ids {
		if s.gone(ctx, id) {
			s.mu.Lock()
			s.sharing.leave(id, s.now())
			s.mu.Unlock()
			s.ringAll()
		}
	}
}

// logPartitions logs which partitions this janitor acts for, when these have changed.
func (s *Leases) logPartitions() {
	s.mu.Lock()
	var mine []int
	for _, l := range s.mine() {
		mine = append(mine, l.partition)
	}
	text := Ranges(mine)
	same := text == s.logged
	s.logged = text
	s.mu.Unlock()
	switch {
	case same:
	case text == "":
		s.logger.Info("this janitor acts for no partition now")
	default:
		s.logger.Info("this janitor acts", "partitions", text)
	}
}

// Ranges returns numbers in increasing order as text, such as "0-3, 5".
func Ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		n := 1
		for i+n < len(numbers) && numbers[i+n] == numbers[i]+n {
			n++
		}
		part := strconv.Itoa(numbers[i])
		if n > 1 {
			part += "-" + strconv.Itoa(numbers[i]+n-1)
		}
		parts, i = append(parts, part), i+n
	}
	return strings.Join(parts, ", ")
}
