package bridge

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/records"
	"rejoin/shared/rpc"
)

// A session that ends while the upstream takes its message ends no other session's request, which
// net/http may have given the same connection (docs/upstream/0031).
func TestRemote_EndOfASessionIsItsOwn(t *testing.T) {
	_, up, b := bridged(t, newServer(t))
	var ends [8]chan struct{}
	up.handle("m", func(w *writing, r *http.Request, _ rpc.Message) {
		w.WriteHeader(http.StatusAccepted)
		if n, err := strconv.Atoi(r.Header.Get("Accept-Language")); err == nil {
			select {
			case ends[n] <- struct{}{}:
			default:
			}
		}
	})
	r := b.server.Restore(records.Metadata{})
	message := []byte(`{"jsonrpc":"2.0","method":"m"}`)
	over, stop := context.WithCancel(t.Context())
	var sessions sync.WaitGroup
	for n := range ends {
		ends[n] = make(chan struct{}, 1)
		sessions.Go(func() {
			for over.Err() == nil {
				ctx, end := context.WithCancelCause(t.Context())
				sessions.Go(func() {
					select {
					case <-ends[n]:
					case <-ctx.Done():
					}
					end(host.ErrEnded)
				})
				r.Send(ctx, http.Header{"Accept-Language": {strconv.Itoa(n)}}, message)
				end(host.ErrEnded)
			}
		})
	}
	for i := range 1000 {
		if a := r.Send(t.Context(), http.Header{}, message); a.Status != http.StatusAccepted {
			t.Errorf("request %d: %d %s", i, a.Status, a.Data)
			break
		}
	}
	stop()
	sessions.Wait()
}
