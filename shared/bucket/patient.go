package bucket

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/natsconn"
)

const (
	// busyEvery is how often a write is tried while another one of its key is under way.
	busyEvery = 5 * time.Millisecond
	// busyWithin bounds that.
	busyWithin = 5 * time.Second
)

// Patient returns a bucket whose Create and Update are repeated while they are refused only
// because another write of their key is under way, which says nothing of revisions. The
// leader of a bucket with replicas says so for a moment even when it has acknowledged the
// other one (docs/upstream/0015). They give up after 5 s, or when their ctx ends.
func Patient(kv jetstream.KeyValue) jetstream.KeyValue { return patient{kv} }

type patient struct{ jetstream.KeyValue }

func (p patient) Create(ctx context.Context, key string, value []byte, opts ...jetstream.KVCreateOpt) (revision uint64, err error) {
	err = untilNotBusy(ctx, func() error {
		revision, err = p.KeyValue.Create(ctx, key, value, opts...)
		return err
	})
	return revision, err
}

func (p patient) Update(ctx context.Context, key string, value []byte, last uint64) (revision uint64, err error) {
	err = untilNotBusy(ctx, func() error {
		revision, err = p.KeyValue.Update(ctx, key, value, last)
		return err
	})
	return revision, err
}

func untilNotBusy(ctx context.Context, write func() error) error {
	for deadline := time.Now().Add(busyWithin); ; {
		err := write()
		if !busy(err) || time.Now().After(deadline) {
			return err
		}
		if !natsconn.Pause(ctx, busyEvery) {
			return err
		}
	}
}

func busy(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}
