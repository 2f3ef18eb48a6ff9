package bucket_test

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestOpen_ConcurrentCreators(t *testing.T) {
	js := connect(t, natstest.StartParallel(t))
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			kv, err := bucket.Ensure(t.Context(), js, bucket.Config("B", fmt.Sprint(n), 1))
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := kv.PutString(t.Context(), fmt.Sprint(n), "1"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	must.Value(bucket.Ensure(t.Context(), js, bucket.Config("B", "8", 1)))(t)
	stream := must.Value(js.Stream(t.Context(), "KV_B"))(t)
	// A server that is behind the leader must not answer.
	if info := stream.CachedInfo(); info.State.Msgs != 8 || info.Config.Description == "8" || info.Config.AllowDirect {
		t.Errorf("the bucket is %+v", info)
	}
}

func TestOpen_CannotBeCreated(t *testing.T) {
	js := connect(t, natstest.StartParallel(t))
	if _, err := bucket.Ensure(t.Context(), js, bucket.Config("B", "", 3)); err == nil {
		t.Error("one server holds three replicas")
	}
	if _, err := bucket.Ensure(t.Context(), js, bucket.Config("a bucket", "", 1)); !errors.Is(err, jetstream.ErrInvalidBucketName) {
		t.Errorf("a name with a space: %v", err)
	}
}

func TestConflict_RefusedRevision(t *testing.T) {
	kv := create(t, connect(t, natstest.StartParallel(t)))
	must.Value(kv.PutString(t.Context(), "k", "1"))(t)
	_, created := kv.Create(t.Context(), "k", nil)
	_, updated := kv.Update(t.Context(), "k", nil, 7)
	_, missing := kv.Get(t.Context(), "none")
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"create":       {created, true},
		"update":       {updated, true},
		"delete":       {kv.Delete(t.Context(), "k", jetstream.LastRevision(7)), true},
		"purge":        {kv.Purge(t.Context(), "k", jetstream.LastRevision(7)), true},
		"replicas":     {&jetstream.APIError{ErrorCode: jetstream.JSErrCodeStreamWrongLastSequenceConstant}, true},
		"missing":      {missing, false},
		"other answer": {&jetstream.APIError{ErrorCode: 10008}, false},
		"no answer":    {io.EOF, false},
		"none":         {nil, false},
	} {
		if got := bucket.Conflict(tt.err); got != tt.want {
			t.Errorf("%s: %t, %v", name, got, tt.err)
		}
	}
}

// A request that comes while the bucket changes its leader gets no answer. It is made again.
func TestEnsure_Unanswered(t *testing.T) {
	t.Parallel()
	srv := natstest.StartCluster(t).Servers[0]
	silence := natstest.NewSilence(t, srv, "STREAM.INFO.KV_B ")
	js := natstest.JetStream(t, srv.Connect(nats.SetCustomDialer(&silence.Link)))
	cfg := bucket.Config("B", "", 3)
	must.Value(bucket.Ensure(waittest.Context(t), js, cfg))(t)
	silence.Next(1)
	must.Value(bucket.Ensure(waittest.Context(t), js, cfg))(t)
}
