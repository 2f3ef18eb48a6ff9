// Package logset is the request that changes the limits of the log, one partition
// at a time, and its answer. "rejoin log set" sends it, and the janitor that acts for the partition makes
// the change: it alone writes the partitions' configuration, where the generations are too.
package logset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
)

// Queue is the group of the janitors that listen.
const Queue = "janitor"

// Subject is the subject on which the janitor that acts for a partition listens.
func Subject(partition int) string { return "mcp.log.set." + strconv.Itoa(partition) }

var (
	// ErrNobody is returned when no janitor listens, or the one that did has lost its lease
	// before it was done: another one acts soon, and may get the same request.
	ErrNobody = errors.New("no janitor answers")

	// ErrRefused is returned when the janitor did not make the change, or not to the end; the
	// error has the reason.
	ErrRefused = errors.New("the janitor says")
)

// Request asks for the limits of one partition. From partition 0 on the new settings
// are those of the log, so it is the last, as for [eventlog.Log.SetLimits].
type Request struct {
	Partition int
	// From are the log's settings as the caller has seen them: another change in
	// between is not undone unseen.
	From eventlog.Settings
	// To are the new ones. Only limits may differ.
	To eventlog.Settings
}

// Reply answers a Request, when the partition has the limits.
type Reply struct {
	// Error is the reason when it has not; empty when it has.
	Error string `json:"error,omitempty"`
	// SteppedDown says that the janitor does not act any more. The partition may have the limits.
	SteppedDown bool `json:"stepped_down,omitempty"`
}

// again is the time until a request is repeated: its janitor may have ended. One that is not yet done answers both.
const again = 5 * time.Second

// Ask sends a request and waits for the answer, which may take as long as JetStream
// takes to copy a partition to new replicas; meanwhile it repeats the request every 5 s. Errors wrap [ErrNobody],
// [ErrRefused], or ctx's or the connection's error, with which it is unknown whether
// the partition has the new limits.
func Ask(ctx context.Context, nc *nats.Conn, req Request) error {
	data, err := json.Marshal(req)
	if err != nil {
		return err
	}
	return askEach(ctx, nc, Subject(req.Partition), data, again)
}

func askEach(ctx context.Context, nc *nats.Conn, subject string, data []byte, again time.Duration) error {
	var msg *nats.Msg
	err := context.DeadlineExceeded
	for errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, again)
		msg, err = nc.RequestWithContext(attempt, subject, data)
		cancel()
	}
	if errors.Is(err, nats.ErrNoResponders) {
		return ErrNobody
	}
	if err != nil {
		return err
	}
	var reply Reply
	if err := json.Unmarshal(msg.Data, &reply); err != nil {
		return fmt.Errorf("the answer of the janitor cannot be read: %w", err)
	}
	if reply.SteppedDown {
		return fmt.Errorf("%w: the one that was asked does not act any more", ErrNobody)
	}
	if reply.Error != "" {
		return fmt.Errorf("%w: %s", ErrRefused, reply.Error)
	}
	return nil
}
