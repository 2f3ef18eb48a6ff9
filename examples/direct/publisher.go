package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// repeatWithin is how long an event without an answer is repeated: less than the
	// two minutes in which JetStream knows its ID again.
	repeatWithin = 100 * time.Second
	// answerWithin is how long one attempt waits for the answer.
	answerWithin = 2 * time.Second
	// pause is how long to wait before the next attempt.
	pause = 250 * time.Millisecond
	// settleWithin is how long a server's generation is waited for once the log answers:
	// without a janitor there will be none.
	settleWithin = 10 * time.Second
)

// publisher publishes events one after the other. It is not safe for concurrent use.
type publisher struct {
	nc         *nats.Conn
	js         jetstream.JetStream
	partitions int
	settled    map[int]string // the server whose generation a partition has begun
}

// connect opens a log that is there. How many partitions it has never changes.
func connect(ctx context.Context, url string) (*publisher, error) {
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	p := &publisher{nc: nc, js: js, settled: map[int]string{}}
	meta, err := p.metadata(ctx, 0)
	if err == nil {
		p.partitions, err = strconv.Atoi(meta["rejoin.partitions"])
	}
	if err == nil && meta["rejoin.version"] != "1" {
		err = fmt.Errorf("the log has version %q", meta["rejoin.version"])
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return p, nil
}

// metadata is what the log says of itself at a partition.
func (p *publisher) metadata(ctx context.Context, partition int) (map[string]string, error) {
	stream, err := p.js.Stream(ctx, "MCP_"+strconv.Itoa(partition))
	if err != nil {
		return nil, err
	}
	return stream.CachedInfo().Config.Metadata, nil
}

// publish stores an event, and returns when JetStream says that it has. What got no
// answer is repeated under the same ID, so that it is stored once. An error that wraps
// [jetstream.APIError] says that it is not stored; with any other it may be.
func (p *publisher) publish(ctx context.Context, e event) (*jetstream.PubAck, error) {
	ctx, cancel := context.WithTimeout(ctx, repeatWithin)
	defer cancel()
	partition := partition(e.session, p.partitions)
	for {
		ack, err := p.attempt(ctx, partition, e)
		var refused *jetstream.APIError
		if err == nil || errors.As(err, &refused) {
			return ack, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
}

func (p *publisher) attempt(ctx context.Context, partition int, e event) (*jetstream.PubAck, error) {
	p.settle(ctx, partition)
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return p.js.PublishMsg(ctx, e.message(p.partitions), jetstream.WithExpectStream("MCP_"+strconv.Itoa(partition)))
}

// settle waits until the janitor has begun a generation for the server that is connected
// now: after a power cut, an event that is stored before may get the ID of one that was
// lost. In a cluster the janitor writes down which servers there are.
func (p *publisher) settle(ctx context.Context, partition int) {
	server, name, clustered := p.nc.ConnectedServerId(), p.nc.ConnectedServerName(), p.nc.ConnectedClusterName() != ""
	var answered time.Time
	for p.settled[partition] != server && ctx.Err() == nil {
		meta, err := p.metadata(ctx, partition)
		if err == nil && answered.IsZero() {
			answered = time.Now()
		}
		known := meta["rejoin.server"] == server
		if clustered {
			known = knows(meta["rejoin.servers"], name, server)
		}
		if err == nil && (known || time.Since(answered) > settleWithin) {
			p.settled[partition] = server
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// knows reports whether a list of servers, in JSON, has the ID of a server under its name,
// or nothing.
func knows(list, name, id string) bool {
	var servers map[string]string
	if err := json.Unmarshal([]byte(list), &servers); err != nil || servers[name] == "" {
		return true
	}
	return strings.TrimPrefix(servers[name], "?") == id
}
