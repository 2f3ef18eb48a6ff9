package call

import (
	"encoding/json"
	"slices"
	"sync"

	"rejoin/shared/rpc"
)

// requests are those of a call that have no response yet. They are safe for concurrent use.
type requests struct {
	mu   sync.Mutex
	open []openRequest
}

// openRequest is a request that has no response yet.
type openRequest struct {
	ID        json.RawMessage // the client's
	Sent      json.RawMessage // the ID that the upstream has
	key       string          // its [rpc.IDKey]
	cancelled bool
}

func newRequests(ids []json.RawMessage) *requests {
	r := &requests{}
	for _, id := range ids {
		r.open = append(r.open, openRequest{ID: id, Sent: id, key: rpc.IDKey(id)})
	}
	return r
}

// IDs returns the client's IDs of the open requests.
func (r *requests) IDs() []json.RawMessage {
	open, _ := r.Left()
	ids := make([]json.RawMessage, len(open))
	for i, o := range open {
		ids[i] = o.ID
	}
	return ids
}

// answeredTo is Answered for the ID that the client has given.
func (r *requests) answeredTo(id []byte) {
	key := rpc.IDKey(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = slices.DeleteFunc(r.open, func(o openRequest) bool { return rpc.IDKey(o.ID) == key })
}

// Answered notes that the response to a request is stored.
func (r *requests) Answered(id []byte) {
	key := rpc.IDKey(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.IndexFunc(r.open, func(a openRequest) bool { return a.key == key }); i >= 0 {
		r.open = slices.Delete(r.open, i, i+1)
	}
}

// waitsFor reports whether the response to this request is missing.
func (r *requests) waitsFor(id []byte) bool {
	key := rpc.IDKey(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.open, func(a openRequest) bool { return a.key == key })
}

// only returns the ID that the upstream has of the one request that has no response; nil for none, and
// for several.
func (r *requests) only() json.RawMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.open) != 1 {
		return nil
	}
	return r.open[0].Sent
}

// Left returns the requests without a response, and whether the client has cancelled
// all of them.
func (r *requests) Left() (open []openRequest, cancelled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.open), !slices.ContainsFunc(r.open, func(a openRequest) bool { return !a.cancelled })
}

// Done reports whether all requests have a response.
func (r *requests) Done() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.open) == 0
}

// SentAs notes the ID that the upstream has of the one request.
func (r *requests) SentAs(id json.RawMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[0].Sent, r.open[0].key = id, rpc.IDKey(id)
}

// cancelOne notes that the client has cancelled a request.
func (r *requests) cancelOne(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.open {
		if r.open[i].key == key {
			r.open[i].cancelled = true
		}
	}
}
