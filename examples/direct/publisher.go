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
	// repeatWithin is how long an event is repeated: with the longest attempt, of 20 s, less than the
	// two minutes in which JetStream knows its ID again.
	repeatWithin = 90 * time.Second
	// connectWithin is how long the log may take for the first answer.
	connectWithin = 5 * time.Second
	// answerWithin is how long a request waits for its answer: a request lost with the connection has none.
	answerWithin = 2 * time.Second
	// pause is how long to wait before the next attempt.
	pause = 250 * time.Millisecond
	// generationWithin bounds the wait for a server's generation while the log answers:
	// without a janitor none begins.
	generationWithin = 10 * time.Second
	// askEvery is how often the publisher asks for the session's life: the log forgets a session that was
	// closed --tombstone-ttl ago, with keepClosed in its metadata 10 minutes ago, and then no longer
	// refuses messages to its life.
	askEvery = 10 * time.Minute
)

var (
	errNoSession = errors.New("there is no such session; create it with POST /v1/sessions")
	errEnded     = errors.New("the stream or session has ended; if this repeats an event, that one may be stored")
	errUnknown   = errors.New("it may be stored or not")
)

// publisher publishes the events of one stream, one after the other. It is not safe for
// concurrent use.
type publisher struct {
	nc         *nats.Conn
	js         jetstream.JetStream
	partitions int
	server     string    // on which the stream was begun
	life       string    // of the session
	asked      time.Time // when its life was asked for
}

// connect opens a log that is there. How many partitions it has never changes.
func connect(ctx context.Context, url string) (*publisher, error) {
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.ReconnectBufSize(-1))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(answerWithin))
	if err != nil {
		nc.Close()
		return nil, err
	}
	p := &publisher{nc: nc, js: js}
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	meta, err := p.metadata(ctx, 0)
	if err == nil {
		p.partitions, err = strconv.Atoi(meta["rejoin.partitions"])
	}
	if err == nil && meta["rejoin.version"] != "3" {
		err = fmt.Errorf("the log has version %q", meta["rejoin.version"])
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return p, nil
}

func log(partition int) string { return "MCP_" + strconv.Itoa(partition) }

// metadata returns the log's metadata at a partition.
func (p *publisher) metadata(ctx context.Context, partition int) (map[string]string, error) {
	stream, err := p.js.Stream(ctx, log(partition))
	if err != nil {
		return nil, err
	}
	return stream.CachedInfo().Config.Metadata, nil
}

// publish stores an event, and returns when JetStream acknowledges it. It repeats the event under the same
// ID, so that it is stored once. The error wraps errUnknown if it may be stored all the same.
func (p *publisher) publish(ctx context.Context, e event) (*jetstream.PubAck, error) {
	deadline := time.Now().Round(0).Add(repeatWithin) // the monotonic clock stands still while the machine sleeps
	for unknown := false; ; {
		ack, err := p.attempt(ctx, e)
		if err == nil {
			return ack, nil
		}
		unknown = unknown || errors.Is(err, errUnknown)
		if !refused(err) {
			select {
			case <-ctx.Done():
			case <-time.After(pause):
				if time.Now().Before(deadline) {
					continue
				}
			}
		}
		if unknown && !errors.Is(err, errUnknown) {
			err = fmt.Errorf("%w: %w", errUnknown, err)
		}
		return nil, err
	}
}

// refused reports whether an event that failed is not to be repeated.
func refused(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	tooLarge := ok && api.ErrorCode == 10054 || errors.Is(err, nats.ErrMaxPayload)
	return tooLarge || errors.Is(err, errEnded) || errors.Is(err, errNoSession)
}

func (p *publisher) attempt(ctx context.Context, e event) (*jetstream.PubAck, error) {
	if err := p.begin(ctx, e); err != nil {
		return nil, err
	}
	ack, err := p.send(ctx, e.message(p.partitions, p.life), e)
	api, answered := errors.AsType[*jetstream.APIError](err)
	busy := answered && api.ErrorCode == 10158 // in a cluster: an earlier attempt is on its way
	if err != nil && (!answered || busy) && !refused(err) {
		err = fmt.Errorf("%w: %w", errUnknown, err)
	}
	return ack, err
}

// send publishes a message with a fence.
func (p *publisher) send(ctx context.Context, msg *nats.Msg, e event) (*jetstream.PubAck, error) {
	ack, err := p.js.PublishMsg(ctx, msg, jetstream.WithExpectStream(log(partition(e.session, p.partitions))))
	if api, ok := errors.AsType[*jetstream.APIError](err); ok && api.ErrorCode == 10071 && !strings.HasSuffix(api.Description, ": 0") { // with 0 the server could not look
		return nil, fmt.Errorf("%w (%w)", errEnded, err)
	}
	return ack, err
}

// begin finds out the session's life and stores the birth of the stream, once for each connected
// server, since a restarted one may have lost the birth, and every askEvery.
func (p *publisher) begin(ctx context.Context, e event) error {
	server, now := p.nc.ConnectedServerId(), time.Now().Round(0) // the machine may have been suspended
	if p.server == server && now.Sub(p.asked) < askEvery {
		return nil
	}
	if err := p.awaitGeneration(ctx, partition(e.session, p.partitions), server); err != nil {
		return err
	}
	life, err := p.lifeOf(ctx, e)
	if err != nil {
		return err
	}
	if err := p.bear(ctx, e, life); err != nil {
		return err
	}
	p.server, p.life, p.asked = server, life, now
	return nil
}

// bear stores the birth of the stream, unless there is one: a second one would hide the janitor's
// notes in its copy of the first.
func (p *publisher) bear(ctx context.Context, e event, life string) error {
	birth := e.birth(p.partitions, life)
	stream, err := p.js.Stream(ctx, log(partition(e.session, p.partitions)))
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(birth.Subject))
	if err != nil || info.State.Subjects[birth.Subject] > 0 {
		return err
	}
	_, err = p.send(ctx, birth, e)
	return err
}

// lifeOf asks ingest for the life of the session; begin needs nothing else of the answer.
func (p *publisher) lifeOf(ctx context.Context, e event) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	msg, err := p.nc.RequestWithContext(ctx, "mcp.ingest."+token(e.session), nil)
	if err != nil {
		return "", err
	}
	switch code := msg.Header.Get("Nats-Service-Error"); code {
	case "":
	case "not_found":
		return "", errNoSession
	default:
		return "", fmt.Errorf("ingest does not say the session's life: %s", msg.Data)
	}
	var session struct{ Life string }
	if err := json.Unmarshal(msg.Data, &session); err != nil {
		return "", fmt.Errorf("ingest's answer about the session: %w", err)
	}
	return session.Life, nil
}

// awaitGeneration waits until the janitor has begun a generation for the server that is connected
// now: after a power cut, an event stored before that may get the ID of a lost event. In a
// cluster the janitor notes the servers in the metadata.
func (p *publisher) awaitGeneration(ctx context.Context, partition int, server string) error {
	for deadline := time.Now().Add(generationWithin); ; time.Sleep(20 * time.Millisecond) {
		meta, err := p.metadata(ctx, partition)
		begun := meta["rejoin.server"] == server
		if p.nc.ConnectedClusterName() != "" {
			begun = knows(meta["rejoin.servers"], p.nc.ConnectedServerName(), server)
		}
		if err != nil || begun || time.Now().After(deadline) {
			return err
		}
	}
}

// knows reports whether a list of servers, in JSON, has the ID of a server under its name,
// or no ID.
func knows(list, name, id string) bool {
	var servers map[string]string
	if err := json.Unmarshal([]byte(list), &servers); err != nil || servers[name] == "" {
		return true
	}
	return strings.TrimPrefix(servers[name], "?") == id
}
