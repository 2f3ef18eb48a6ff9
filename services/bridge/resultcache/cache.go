// Package resultcache keeps the results of an MCP server that are marked as public: all clients may share them
// (revision 2026-07-28, page "Caching"). It knows no network, and its clock is the caller's.
package resultcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"rejoin/services/bridge/translate"
	"rejoin/shared/clocks"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

const (
	// keptFor is how long a result is served at most, also when the server declared it fresh for longer: by
	// then the results of a server that another version has replaced are out of use.
	keptFor = 5 * time.Minute
	// maxEntries bounds the results.
	maxEntries = 10_000
	// maxResult bounds a result; a larger one is not kept. None takes more than a quarter of the cache.
	maxResult = 1 << 20
	// entryBytes is the size of an entry without its result.
	entryBytes = 256
)

// kindOf returns the kind of a method's results.
func kindOf(method string) string {
	kind, _, _ := strings.Cut(method, "/")
	return kind
}

// Request is a request whose result may be kept.
type Request struct {
	// Data is the request for the server: a member that the client's request has twice is there
	// once, so the server and the key cannot disagree about it.
	Data []byte

	key        [sha256.Size]byte
	kind       string
	generation uint64
}

// perRequest names the header fields and members of _meta that differ between requests for the same result.
var perRequest = []string{"progressToken", "traceparent", "tracestate"}

// read returns the request with the key of its result: the method, all parameters, which include version and
// capabilities, and the header fields that the server gets. ok is false for a request whose
// result may not be kept.
func read(r mcp.Request, header http.Header) (q Request, ok bool) {
	if !translate.Cacheable[r.Method] || r.Params["inputResponses"] != nil || r.Params["requestState"] != nil {
		return q, false
	}
	params, meta := maps.Clone(r.Params), maps.Clone(r.Meta)
	params["_meta"] = event.MustJSON(meta)
	q.Data = event.MustJSON(map[string]any{"jsonrpc": "2.0", "id": r.ID, "method": r.Method, "params": params})
	header = header.Clone()
	for _, name := range perRequest {
		delete(meta, name)
		header.Del(name)
	}
	params["_meta"] = event.MustJSON(meta)
	q.kind, q.key = kindOf(r.Method), sha256.Sum256(event.MustJSON([]any{r.Method, params, header}))
	return q, true
}

// Cache is safe for concurrent use.
type Cache struct {
	max int
	now func() clocks.Instant

	mu          sync.Mutex
	bytes       int
	entries     *simplelru.LRU[[sha256.Size]byte, entry]
	generations map[string]uint64 // how often each kind has changed
}

type entry struct {
	result     []byte // without ttlMs, and without the opening brace
	ttl        int64  // ms
	at         clocks.Instant
	generation uint64
}

func (e entry) size() int { return len(e.result) + entryBytes }

// New returns a cache of so many bytes. now is that of [clocks.New]: results grow old also while the machine is
// suspended.
func New(maxBytes int, now func() clocks.Instant) *Cache {
	c := &Cache{max: maxBytes, now: now, generations: map[string]uint64{}}
	c.entries, _ = simplelru.NewLRU(maxEntries, func(_ [sha256.Size]byte, e entry) { c.bytes -= e.size() }) // fails only without a size
	return c
}

// Get returns the result of a request if there is one, with the time for which it stays fresh. header
// has the fields that the MCP server would get. Where there is none, it returns the request that [Cache.Put]
// takes, or nil if its result may not be kept.
func (c *Cache) Get(r mcp.Request, header http.Header) (result []byte, q *Request) {
	request, ok := read(r, header)
	if !ok {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	request.generation = c.generations[request.kind]
	e, ok := c.entries.Get(request.key)
	if !ok {
		return nil, &request
	}
	age := e.at.Until(c.now())
	left := e.ttl - (age + time.Millisecond - 1).Milliseconds()
	if left <= 0 || age >= keptFor || e.generation != request.generation {
		c.entries.Remove(request.key)
		return nil, &request
	}
	return append(append(strconv.AppendInt([]byte(`{"ttlMs":`), left, 10), ','), e.result...), nil
}

// Put keeps the result of a request, unless it is for one client only. If its kind has changed since Get
// returned the request, no Get returns it.
func (c *Cache) Put(q Request, result json.RawMessage) {
	var hints struct {
		Type  string `json:"resultType"`
		Scope string `json:"cacheScope"`
		TTL   int64  `json:"ttlMs"`
	}
	if len(result) > min(maxResult, c.max/4) || rpc.Unmarshal(result, &hints) != nil ||
		hints.Type != "complete" || hints.Scope != "public" || hints.TTL <= 0 {
		return
	}
	var members map[string]json.RawMessage
	if rpc.Unmarshal(result, &members) != nil {
		return
	}
	delete(members, "ttlMs")
	e := entry{result: bytes.TrimPrefix(event.MustJSON(members), []byte("{")), ttl: hints.TTL, at: c.now(), generation: q.generation}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries.Remove(q.key) // Add would not count the entry that it replaces
	c.bytes += e.size()
	c.entries.Add(q.key, e)
	for c.bytes > c.max {
		c.entries.RemoveOldest()
	}
}

// Changed ends the results that a notification declares stale, and those of requests that have not
// been answered yet: all of one kind, since a server may name a part of a resource that was read. Their memory is
// free when a client asks for them, or when other results need it. It reports whether the notification reports a change.
func (c *Cache) Changed(method string) bool {
	if !translate.IsChange(rpc.Message{Method: &method}) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generations[kindOf(strings.TrimPrefix(method, "notifications/"))]++
	return true
}
