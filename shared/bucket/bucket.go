// Package bucket opens and follows JetStream key-value buckets. It does not use the watch of
// nats.go, which cannot be stopped without a server (docs/upstream/0002).
package bucket

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/natsconn"
)

// Entry is the value of a key, or its removal.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
	Removed  bool
}

// Follow calls show for the present entry of each key, then whole once, then show for every
// change, all one after the other, until ctx ends or the connection is lost. It returns
// why it ended: the cause of its context, or the error of JetStream.
//
// When whole is called, all entries were shown that the leader had when Follow was called. After
// that, in a cluster, the shown entries may lag by [Lag], and Follow ends when its consumer stalls.
//
// The key-value client's own watch waits up to 5 s, when it is stopped, for an answer
// that a lost connection never brings.
func Follow(ctx context.Context, js jetstream.JetStream, bucket string, show func(Entry), whole func()) error {
	ctx, done := natsconn.While(ctx, js.Conn())
	defer done()
	err := follow(ctx, js, bucket, show, whole)
	if ctx.Err() != nil {
		return context.Cause(ctx) // a request that ctx has ended returns only ctx's error
	}
	return err
}

func follow(ctx context.Context, js jetstream.JetStream, bucket string, show func(Entry), whole func()) error {
	prefix := subject(bucket, "")
	reader, err := natsconn.NewReader(ctx, js, streamName(bucket), natsconn.ReaderConfig{Filter: prefix + ">", Latest: true, Silence: Lag})
	if err != nil {
		return err
	}
	defer func() { _ = reader.Stop() }() // the server forgets it by itself
	f := &follower{whole: whole, drained: make(chan struct{}, 1)}
	f.came(0, reader.Pending)
	err = reader.Start(func(msg *nats.Msg, meta *nats.MsgMetadata) {
		f.mu.Lock()
		defer f.mu.Unlock()
		show(Entry{
			Key: strings.TrimPrefix(msg.Subject, prefix), Value: msg.Data, Revision: meta.Sequence.Stream,
			Removed: removed(msg),
		})
		f.came(meta.Sequence.Stream, meta.NumPending)
	})
	if err != nil {
		return err
	}
	leader, err := f.wait(ctx, js, streamName(bucket), prefix+">", reader.Broken())
	if err != nil {
		return err
	}
	return f.watch(ctx, leader, prefix+">", reader.Broken())
}

// Lag is how long a copy may be behind a bucket of a cluster unnoticed, when the server
// that its consumer lies on is lost.
const Lag = time.Second

const (
	// wholeWithin is how long the server that a consumer lies on may take to receive the entries
	// that the leader has. Then it is given up: another one may lag less.
	wholeWithin = 5 * time.Second
	askEvery    = 20 * time.Millisecond
	// busyFor is how long keys are written without a pause until a key counts as shown that was written again and
	// again just before it would have been.
	busyFor = time.Second
	// idleFor is how long no message may come before the leader is asked whether there are more: those that were to
	// come may have been removed.
	idleFor = time.Second
	// watchEvery is how often the leader is asked whether it has an entry that was not shown. That entry has to be
	// shown by the next time.
	watchEvery = 2 * time.Second
)

var (
	// errBehind is returned when the consumer's server is far behind the leader. A server whose disk has failed receives
	// no new entry until it is restarted, and keeps its consumers and their heartbeats (docs/upstream/0008).
	errBehind = errors.New("the consumer is behind the bucket")
	// errNoLeader is returned when no leader reports the bucket's last revision.
	errNoLeader = errors.New("the bucket has no leader")
)

// PutFor writes a value that is kept for a time, in whole seconds. The key-value client can do so only
// for a key without a value. With an expected sequence of the subject among opts it is compare-and-set; see [Conflict].
func PutFor(ctx context.Context, js jetstream.JetStream, bucket, key string, value []byte, ttl time.Duration, opts ...jetstream.PublishOpt) error {
	msg := nats.NewMsg(subject(bucket, key))
	msg.Data = value
	_, err := js.PublishMsg(ctx, msg, append(opts, jetstream.WithMsgTTL(ttl.Truncate(time.Second)))...)
	return err
}

// ErrNearlyFull is returned by [CheckRoom] when less than an eighth of a bucket is left.
var ErrNearlyFull = errors.New("the bucket is nearly full")

// CheckRoom is for new keys whose number depends on clients: they leave an eighth of the bucket's bytes to
// other keys. Errors are [ErrNearlyFull], or those of JetStream.
func CheckRoom(ctx context.Context, js jetstream.JetStream, bucket string) error {
	stream, err := js.Stream(ctx, streamName(bucket))
	if err != nil {
		return err
	}
	if is := stream.CachedInfo(); is.Config.MaxBytes > 0 && is.State.Bytes > uint64(is.Config.MaxBytes/8*7) {
		return ErrNearlyFull
	}
	return nil
}

// Last asks the leader of a bucket for the value of a key, the time of its write, and its revision. The value is empty
// when there is none, or none any more; a marker of its removal may have a revision, which the key-value client does
// not report.
func Last(ctx context.Context, nc *nats.Conn, bucket, key string) (value []byte, written time.Time, revision uint64, err error) {
	js, err := nc.JetStream()
	if err != nil {
		return nil, written, 0, err
	}
	msg, err := js.GetLastMsg(streamName(bucket), subject(bucket, key), nats.Context(ctx))
	switch {
	case errors.Is(err, nats.ErrMsgNotFound):
		return nil, written, 0, nil
	case err != nil:
		return nil, written, 0, err
	}
	return msg.Data, msg.Time, msg.Sequence, nil
}

// follower records up to which revision a bucket was shown. mu orders the reader's calls and whole.
//
// A key that is written while its previous value waits to be shown comes after all others. So the bucket was shown as
// a whole only at a moment at which no message waits, and not once as many messages came as there were keys. Nor does
// the consumer report it: for a moment its NumPending counts neither the previous value nor the new one
// (docs/upstream/0039).
type follower struct {
	whole   func()
	drained chan struct{} // there may be no more messages

	mu    sync.Mutex
	shown uint64 // the newest revision
}

// came notes the revision of a shown entry. The caller holds the lock, or is the only one.
func (f *follower) came(revision, pending uint64) {
	f.shown = revision
	if pending > 0 {
		return
	}
	select {
	case f.drained <- struct{}{}:
	default:
	}
}

// wait calls whole once all entries of the leader, which it returns, were shown. Where keys are written without a
// pause for busyFor, all entries that the leader had when that began are enough.
func (f *follower) wait(ctx context.Context, js jetstream.JetStream, stream, subjects string, broken <-chan error) (leader jetstream.Stream, err error) {
	again := time.After(idleFor)
	drained := false // the consumer's server has reported that it has no more messages
	var begun time.Time
	var before, upTo uint64
	for whole := false; !whole; {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case err := <-broken:
			return nil, err
		case <-f.drained:
			drained = true
		case <-again:
		}
		shown := f.newest()
		if !drained && shown != before { // there is much to show
			before, begun, again = shown, time.Time{}, time.After(idleFor)
			continue
		}
		if begun.IsZero() {
			if leader, err = js.Stream(ctx, stream); err != nil {
				return nil, err
			}
			info := leader.CachedInfo()
			info.Config.AllowDirect = false // of a bucket that an earlier version made: a copy that is behind would answer
			if !cluster.FromLeader(info) {
				return nil, errNoLeader
			}
			begun, upTo = time.Now(), info.State.LastSeq
		}
		_, err = next(ctx, leader, shown, subjects, wholeWithin)
		took := time.Since(begun)
		switch {
		case err != nil && !errors.Is(err, jetstream.ErrMsgNotFound):
			return nil, err
		case shown >= upTo && took > busyFor:
			whole = f.finish(math.MaxUint64)
		case err != nil:
			whole = f.finish(shown)
		case took > wholeWithin:
			return nil, errBehind
		}
		if drained {
			again = time.After(askEvery)
		} else {
			again = time.After(idleFor)
		}
	}
	return leader, nil
}

// watch returns errBehind when an entry of the leader is not shown.
func (f *follower) watch(ctx context.Context, leader jetstream.Stream, subjects string, broken <-chan error) error {
	for missing := uint64(0); ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-broken:
			return err
		case <-time.After(watchEvery):
		}
		msg, err := next(ctx, leader, f.newest(), subjects, watchEvery)
		switch {
		case err != nil: // there is none, or no leader
			missing = 0
		case f.newest() < missing: // the leader had it at the last answer
			return errBehind
		default:
			missing = msg.Sequence
		}
	}
}

// next asks the leader for the first message after a revision.
func next(ctx context.Context, leader jetstream.Stream, revision uint64, subjects string, within time.Duration) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return leader.GetMsg(ctx, revision+1, jetstream.WithGetMsgSubject(subjects))
}

// newest returns the newest revision that was shown.
func (f *follower) newest() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shown
}

// finish calls whole, unless an entry newer than a revision was shown, and reports whether it did.
func (f *follower) finish(upTo uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shown > upTo {
		return false
	}
	f.whole()
	return true
}

// removed reports whether a message is a marker: its key was deleted, was purged, or has
// outlived its time (ADR-8 and ADR-43 of NATS).
func removed(msg *nats.Msg) bool {
	h := msg.Header
	return h.Get("KV-Operation") != "" || h.Get(jetstream.MarkerReasonHeader) != ""
}
