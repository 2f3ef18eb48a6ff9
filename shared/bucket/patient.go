package bucket

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/natsconn"
)

const (
	// busyEvery is how often a write is tried while another one of its key is in flight.
	busyEvery = 5 * time.Millisecond
	// busyWithin bounds that.
	busyWithin = 5 * time.Second
)

// Patient returns a bucket whose Get, Create and Update end with the connection. Create and Update are repeated while
// they are refused only because another write of their key is in flight, which proves nothing about revisions. The
// leader of a bucket with replicas refuses them so for a moment even when it has acknowledged the
// other write (docs/upstream/0015). They give up after 5 s, or when their ctx ends.
func Patient(nc *nats.Conn, kv jetstream.KeyValue) jetstream.KeyValue { return patient{kv, nc} }

type patient struct {
	jetstream.KeyValue
	nc *nats.Conn
}

func (p patient) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	ctx, done := natsconn.While(ctx, p.nc)
	defer done()
	return p.KeyValue.Get(ctx, key)
}

func (p patient) Create(ctx context.Context, key string, value []byte, opts ...jetstream.KVCreateOpt) (uint64, error) {
	return p.untilNotBusy(ctx, func(ctx context.Context) (uint64, error) { return p.KeyValue.Create(ctx, key, value, opts...) })
}

func (p patient) Update(ctx context.Context, key string, value []byte, last uint64) (uint64, error) {
	return p.untilNotBusy(ctx, func(ctx context.Context) (uint64, error) { return p.KeyValue.Update(ctx, key, value, last) })
}

func (p patient) untilNotBusy(ctx context.Context, write func(context.Context) (uint64, error)) (revision uint64, err error) {
	ctx, done := natsconn.While(ctx, p.nc)
	defer done()
	for deadline := time.Now().Add(busyWithin); ; {
		if revision, err = write(ctx); !busy(err) || time.Now().After(deadline) || !natsconn.Pause(ctx, busyEvery) {
			return revision, err
		}
	}
}

func busy(err error) bool {
	return natsconn.Code(err) == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}
