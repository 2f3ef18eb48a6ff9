package natsconn_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natsconn"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

func TestContext_ConnectionIsLost(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := srv.Connect()
	lost, doneLost := natsconn.While(t.Context(), nc)
	defer doneLost()
	parent, end := context.WithCancel(t.Context())
	mine, doneMine := natsconn.While(parent, nc)
	defer doneMine()
	if lost.Err() != nil || mine.Err() != nil {
		t.Fatal("a context ended early")
	}
	end()
	waittest.Receive(t, "the context ends with its parent", mine.Done())
	if errors.Is(context.Cause(mine), natsconn.ErrChanged) {
		t.Error("the end of ctx is taken for one of the connection")
	}
	srv.Stop()
	waittest.Receive(t, "the context of the lost connection ends", lost.Done())
	if !errors.Is(context.Cause(lost), natsconn.ErrChanged) {
		t.Errorf("the cause is %v", context.Cause(lost))
	}
	waittest.Until(t, "the connection is lost", func() bool { return !nc.IsConnected() })
	made, doneMade := natsconn.While(t.Context(), nc)
	defer doneMade()
	srv.Start()
	waittest.Receive(t, "the context without a connection ends", made.Done())
}

func TestServer_ClusteredWithoutConnection(t *testing.T) {
	t.Parallel()
	c := natstest.StartCluster(t)
	nc := c.Servers[0].Connect()
	known := natsconn.NewServer(nc)
	for _, srv := range c.Servers {
		srv.Stop()
	}
	// It may be to another server by now, and nothing announces the last loss.
	waittest.Until(t, "the connection is lost", func() bool { return !nc.IsConnected() })
	if !known.Clustered() {
		t.Error("it was forgotten")
	}
	if natsconn.NewServer(nc).Clustered() {
		t.Error("who did not look while there was a connection cannot know")
	}
	if natsconn.NewServer(natstest.Start(t).Connect()).Clustered() {
		t.Error("a server alone is none of a cluster")
	}
}

// single begins a parallel test with a server of its own.
func single(t *testing.T) jetstream.JetStream {
	t.Helper()
	return natstest.JetStream(t, natstest.StartParallel(t).Connect())
}

// stream makes a JetStream stream of n messages.
func stream(t *testing.T, js jetstream.JetStream, n int) jetstream.Stream {
	t.Helper()
	s := must.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}))(t)
	for i := range n {
		must.Value(js.Publish(t.Context(), fmt.Sprintf("s.%d", i%2), []byte("data")))(t)
	}
	return s
}

// read returns the first n sequences that a reader delivers.
func read(t *testing.T, r *natsconn.Reader, n int) (sequences []uint64, bytes int) {
	t.Helper()
	all := make(chan *nats.Msg, 100)
	must.NoError(t, r.Start(func(msg *nats.Msg, meta *nats.MsgMetadata) {
		sequences = append(sequences, meta.Sequence.Stream)
		all <- msg
	}))
	ctx := waittest.Context(t)
	for range n {
		select {
		case msg := <-all:
			bytes += len(msg.Data)
		case err := <-r.Broken():
			t.Fatal(err)
		case <-ctx.Done():
			t.Fatalf("%d of %d messages came", len(sequences), n)
		}
	}
	for err := r.Stop(); err != nil; err = r.Stop() { // no message is delivered after
		if !errors.Is(err, context.DeadlineExceeded) { // not removed in time
			t.Fatal(err)
		}
	}
	return sequences, bytes
}

func TestReader_Config(t *testing.T) {
	js := single(t)
	s := stream(t, js, 6)
	for name, tt := range map[string]struct {
		cfg   natsconn.ReaderConfig
		want  string
		bytes int
	}{
		"all":      {natsconn.ReaderConfig{Ahead: 2}, "[1 2 3 4 5 6]", 24},
		"behind":   {natsconn.ReaderConfig{After: 4}, "[5 6]", 8},
		"filtered": {natsconn.ReaderConfig{Filter: "s.1", After: 2}, "[4 6]", 8},
		"headers":  {natsconn.ReaderConfig{HeadersOnly: true, After: 3}, "[4 5 6]", 0},
		"latest":   {natsconn.ReaderConfig{Filter: "s.>", Latest: true}, "[5 6]", 8},
	} {
		r := must.Value(natsconn.NewReader(t.Context(), js, "S", tt.cfg))(t)
		got, bytes := read(t, r, int(r.Pending)) //nolint:gosec // a few
		if fmt.Sprint(got) != tt.want || bytes != tt.bytes {
			t.Errorf("%s: %v with %d bytes, want %s with %d", name, got, bytes, tt.want, tt.bytes)
		}
	}
	info := must.Value(s.Info(t.Context()))(t)
	if info.State.Consumers != 0 {
		t.Errorf("%d consumers are left", info.State.Consumers)
	}
}

func TestReader_ConsumerIsDeleted(t *testing.T) {
	js := single(t)
	s := stream(t, js, 1)
	r := must.Value(natsconn.NewReader(t.Context(), js, "S", natsconn.ReaderConfig{After: 1}))(t)
	must.NoError(t, r.Start(func(*nats.Msg, *nats.MsgMetadata) { t.Error("a message") }))
	for name := range s.ConsumerNames(t.Context()).Name() {
		// The server does not answer a request that comes while the consumer is deleted.
		waittest.Until(t, "the server has the reader's request", func() bool {
			c, err := s.Consumer(t.Context(), name)
			return err == nil && c.CachedInfo().NumWaiting > 0
		})
		must.NoError(t, s.DeleteConsumer(t.Context(), name))
	}
	if err := waittest.Receive(t, "the reader is broken", r.Broken()); !strings.HasSuffix(err.Error(), "409 Consumer Deleted") {
		t.Error(err)
	}
	if err := r.Stop(); err != nil {
		t.Errorf("what is gone cannot be removed: %v", err)
	}
	if _, err := natsconn.NewReader(t.Context(), js, "NONE", natsconn.ReaderConfig{}); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("a stream that is not there: %v", err)
	}
}

// The messages that a reader receives at a time are bounded in bytes, for any sizes of messages; one that
// is larger comes by itself.
func TestReader_LargeMessagesAmongSmallOnes(t *testing.T) {
	js := single(t)
	nc := js.Conn()
	stream(t, js, 0)
	for i := range 300 {
		size := 10
		switch {
		case i%100 == 99:
			size = 5 << 20
		case i > 100 && i < 200:
			size = 900 << 10
		}
		must.Value(js.Publish(t.Context(), "s.1", make([]byte, size)))(t)
	}
	r := must.Value(natsconn.NewReader(t.Context(), js, "S", natsconn.ReaderConfig{}))(t)
	first, goOn := make(chan struct{}), make(chan struct{})
	come := 0
	end := make(chan struct{})
	must.NoError(t, r.Start(func(*nats.Msg, *nats.MsgMetadata) {
		switch come++; come {
		case 102: // of the large ones
			close(first)
			<-goOn
		case 300:
			close(end)
		}
	}))
	waittest.Receive(t, "the first large one", first)
	before := nc.Stats().InBytes
	must.Value(nc.Request("$JS.API.INFO", nil, waittest.Timeout))(t) // the messages sent before have come
	if more := nc.Stats().InBytes - before; more > 4<<20 {
		t.Errorf("%d bytes come while one message is held", more)
	}
	close(goOn)
	waittest.Receive(t, "the last one", end)
	must.NoError(t, r.Stop())
}

// A request may end with the last byte that it asks for, which the server does not report.
func TestReader_RequestEndsWithItsLastByte(t *testing.T) {
	js := single(t)
	const messages, size, full = 40, 60_000, 2 << 20
	sizes := make([]int, messages) // of the messages' data
	for i := range sizes {
		sizes[i] = size
	}
	receive := func() (received []int) {
		stream(t, js, 0)
		defer func() {
			must.NoError(t, js.DeleteStream(t.Context(), "S"))
		}()
		for _, n := range sizes {
			must.Value(js.Publish(t.Context(), "s.1", make([]byte, n)))(t)
		}
		r := must.Value(natsconn.NewReader(t.Context(), js, "S", natsconn.ReaderConfig{}))(t)
		all := make(chan int, messages)
		must.NoError(t, r.Start(func(msg *nats.Msg, _ *nats.MsgMetadata) { all <- msg.Size() }))
		for len(received) < messages {
			select {
			case n := <-all:
				received = append(received, n)
			case err := <-r.Broken(): // after half a minute without a message
				t.Fatalf("%d of %d messages came: %v", len(received), messages, err)
			}
		}
		_ = r.Stop() // the deletion of the stream removes the consumer, too
		return received
	}
	bytes := 0
	for i, n := range receive() {
		if bytes += n; bytes > full {
			sizes[i] -= bytes - full // the request ends with this one
			break
		}
	}
	bytes = 0
	for _, n := range receive() {
		if bytes += n; bytes == full {
			return
		}
	}
	t.Fatal("no request ends with its last byte")
}

// A message that a client could take for a status message of the server is delivered as others are.
func TestReader_MessageLikeAStatus(t *testing.T) {
	js := single(t)
	stream(t, js, 0)
	for _, status := range []string{"100", "408", "409", "503"} {
		must.Value(js.PublishMsg(t.Context(), &nats.Msg{Subject: "s.1", Header: nats.Header{"Status": {status}}}))(t)
	}
	r := must.Value(natsconn.NewReader(t.Context(), js, "S", natsconn.ReaderConfig{Ahead: 2}))(t)
	if got, _ := read(t, r, 4); fmt.Sprint(got) != "[1 2 3 4]" {
		t.Errorf("%v", got)
	}
}

// A request that comes while a leader changes gets no answer. It is made again, and makes one consumer.
func TestReader_ConsumerUnanswered(t *testing.T) {
	t.Parallel()
	srv := natstest.StartCluster(t).Servers[0]
	silence := natstest.NewSilence(t, srv, "CONSUMER.CREATE.S.")
	js := natstest.JetStream(t, srv.Connect(nats.SetCustomDialer(&silence.Link)))
	stream := must.Value(js.CreateStream(waittest.Context(t), jetstream.StreamConfig{Name: "S", Replicas: 3}))(t)
	silence.Next(1)
	r := must.Value(natsconn.NewReader(waittest.Context(t), js, "S", natsconn.ReaderConfig{}))(t)
	t.Cleanup(func() { _ = r.Stop() })
	// The consumer's server may answer before the stream's leader knows the consumer.
	if n := waittest.Value(t, "the stream has a consumer", func() int {
		info, err := stream.Info(waittest.Context(t))
		if err != nil {
			return 0
		}
		return info.State.Consumers
	}, func(n int) bool { return n > 0 }); n != 1 {
		t.Errorf("there are %d consumers", n)
	}
}
