package janitor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"

	"rejoin/services/janitor/lease"
	"rejoin/shared/eventlog"
	"rejoin/shared/inbox"
	"rejoin/shared/logset"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// setsBacklog is how many requests may wait. The NATS client drops more, and logs it; they are sent again.
const setsBacklog = 64

// setter changes the limits of partitions on request.
//
// The buckets get new replicas with partition 0, so an interrupted change is still a
// difference.
type setter struct {
	nc     *nats.Conn
	log    *eventlog.Log
	logger *slog.Logger
}

// errChanged is the answer to a request that was made for other settings.
var errChanged = errors.New("the settings have changed meanwhile")

// run takes one request about a partition after the other until ctx, which is of its term, ends.
func (s *setter) run(ctx context.Context, p int) error {
	requests := make(chan *nats.Msg, setsBacklog)
	sub, err := s.nc.ChanQueueSubscribe(logset.Subject(p), logset.Queue, requests)
	if err != nil {
		return fmt.Errorf("cannot subscribe to %s: %w", logset.Subject(p), err)
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case msg := <-requests:
			s.answer(ctx, p, msg)
		}
	}
	_ = sub.Unsubscribe() // the connection may be closed already
	for len(requests) > 0 {
		s.answer(ctx, p, <-requests) // that the term has ended
	}
	return nil
}

// answer does a request whose sender waits for the answer.
func (s *setter) answer(ctx context.Context, p int, msg *nats.Msg) {
	if !inbox.Is(msg.Reply) { // a consumer may deliver anything here
		s.logger.Warn("a request to change limits is refused: its reply is no inbox", "reply", msg.Reply)
		return
	}
	var reply logset.Reply
	if err := s.set(ctx, p, msg.Data); err != nil {
		reply.Error, reply.SteppedDown = err.Error(), ctx.Err() != nil
	}
	data, _ := json.Marshal(reply) // a text and a flag
	if err := msg.Respond(data); err != nil {
		s.logger.Warn("a request to change limits gets no answer", "error", err)
	}
}

func (s *setter) set(ctx context.Context, p int, data []byte) error {
	if _, err := s.log.Look(ctx, 0); err != nil {
		return err
	}
	now := s.log.Settings()
	req := logset.Request{From: now, To: now} // a sender of an earlier version leaves out settings that it does not know
	requests := json.NewDecoder(bytes.NewReader(data))
	requests.DisallowUnknownFields() // else a setting of a later version would count as made
	if err := requests.Decode(&req); err != nil {
		return fmt.Errorf("the request cannot be read; it may be of a later version: %w", err)
	}
	switch {
	case req.Partition != p:
		return fmt.Errorf("this is not partition %d", req.Partition)
	case req.Partition == 0 && now == req.To: // the answer of a janitor before this one was lost
		return nil
	case now != req.From:
		return errChanged
	}
	if req.Partition == 0 {
		if err := s.buckets(ctx, req.To.Replicas); err != nil {
			s.logger.Warn("cannot change the replicas of a bucket", "error", err)
			return err
		}
	}
	if err := s.log.SetLimits(ctx, req.Partition, req.To); err != nil {
		s.logger.Warn("cannot change the limits of a partition", "partition", req.Partition, "error", err)
		return err
	}
	if req.Partition == 0 {
		s.logger.Info("the log has new limits", "from", fmt.Sprintf("%+v", req.From), "to", fmt.Sprintf("%+v", req.To))
	}
	return nil
}

// buckets gives all of Rejoin's buckets a number of replicas: the registry, the janitor's
// own, the edges' attach records and the bridges' calls. Those that are missing are made
// with the log's number later.
func (s *setter) buckets(ctx context.Context, replicas int) error {
	for _, name := range []string{session.Bucket, lease.Bucket, rpc.AttachBucket, rpc.CallsBucket} {
		if err := s.log.SetReplicas(ctx, name, replicas); err != nil {
			return fmt.Errorf("the bucket %s: %w", name, err)
		}
	}
	return nil
}
