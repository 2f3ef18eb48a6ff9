package client_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/sse"
)

// heartbeat is an edge's.
const heartbeat = 15 * time.Second

// fakeEdge is an edge over one session in memory, with faults.
type fakeEdge struct {
	mu      sync.Mutex
	events  []edgeEvent // by sequence, from 1 on
	removed uint64      // events up to it are deleted
	closed  bool
	changed chan struct{} // closed and made again with every change
	faults  []edgeFault   // of the next requests
	heads   []edgeHead
}

type edgeEvent struct {
	stream, typ, message string
}

// edgeHead is the head of a request.
type edgeHead struct {
	URI, LastEventID, Auth, Accept string
}

// edgeFault is a fault of a request. The zero value is no fault.
type edgeFault struct {
	// Status refuses the request.
	Status     int
	Code       string
	RetryAfter int
	// Later makes the edge send only this retry time, in seconds, as an unavailable edge does.
	Later int
	// Raw is the whole answer, in place of an event stream's blocks.
	Raw string
	// ContentType is that of the answer, when it is not an event stream's.
	ContentType string
	// Encoding is the answer's Content-Encoding.
	Encoding string
	// Forgets makes the edge send events again that the cursor covers already.
	Forgets bool
	// EndAfter and StallAfter end the answer, or make it silent, after so many
	// events or a refusal; 0 means never.
	EndAfter, StallAfter int
	// Mute makes the edge send nothing at all, not even the head.
	Mute bool
}

// publish appends events.
func (f *fakeEdge) publish(events ...edgeEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, events...)
	f.change()
}

// trim removes all events up to a sequence.
func (f *fakeEdge) trim(removed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed = max(f.removed, removed)
}

func (f *fakeEdge) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.change()
}

// change wakes the answers. The lock is held.
func (f *fakeEdge) change() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

func (f *fakeEdge) wait() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.changed
}

func (f *fakeEdge) seen() []edgeHead {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.heads)
}

func eventID(stream string, sequence uint64) string {
	return event.ID{Stream: stream, Tag: "0000000", Sequence: sequence}.String()
}

func (f *fakeEdge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	var fault edgeFault
	if len(f.faults) > 0 {
		fault, f.faults = f.faults[0], f.faults[1:]
	}
	f.heads = append(f.heads, edgeHead{
		r.URL.RequestURI(), r.Header.Get("Last-Event-ID"), r.Header.Get("Authorization"), r.Header.Get("Accept"),
	})
	f.mu.Unlock()
	switch {
	case fault.Mute:
		<-r.Context().Done()
		return
	case fault.Status == http.StatusNoContent:
		w.WriteHeader(fault.Status)
		return
	case fault.Status != 0:
		problem(w, fault.Status, fault.Code, fault.RetryAfter)
		if fault.StallAfter > 0 {
			_, _ = flushed{w}.Write(nil)
			<-r.Context().Done()
		}
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	if fault.ContentType != "" {
		w.Header().Set("Content-Type", fault.ContentType)
	}
	if fault.Encoding != "" {
		w.Header().Set("Content-Encoding", fault.Encoding)
	}
	out := flushed{w}
	switch {
	case fault.Raw != "":
		_, _ = out.Write([]byte(fault.Raw))
	case fault.Later > 0:
		_, _ = out.Write(append(sse.AppendRetry(nil, time.Duration(fault.Later)*time.Second), '\n'))
	default:
		a := &edgeAnswer{edge: f, w: out, fault: fault, stream: streamOf(r)}
		a.envelope = a.stream == "" || r.URL.Query().Get("envelope") == "true"
		a.run(r)
	}
}

func streamOf(r *http.Request) string {
	_, rest, ok := strings.Cut(r.URL.Path, "/streams/")
	if !ok {
		return ""
	}
	return strings.TrimSuffix(rest, "/events")
}

// edgeAnswer is one event stream.
type edgeAnswer struct {
	edge     *fakeEdge
	w        flushed
	fault    edgeFault
	stream   string
	envelope bool
	cursor   uint64
	sent     int // events
}

func (a *edgeAnswer) run(r *http.Request) {
	f := a.edge
	text := r.Header.Get("Last-Event-ID")
	f.mu.Lock()
	removed, end := f.removed, uint64(len(f.events))
	f.mu.Unlock()
	id, err := event.ParseID(text)
	reason := ""
	switch {
	case text == "" && r.URL.Query().Get("from") == "now":
		a.cursor = end
	case text == "", a.fault.Forgets && id.Sequence >= removed:
		a.cursor = removed
	case err != nil || id.Stream != a.stream || id.Sequence > end:
		a.cursor, reason = removed, "unknown"
	default:
		if a.cursor = id.Sequence; a.cursor < removed {
			a.cursor, reason = removed, "trimmed"
		}
	}
	if reason == "" {
		a.block("connect", a.place(), `{"session":"demo"}`, 3*time.Second)
	} else {
		a.block("connect", "", `{"session":"demo"}`, 3*time.Second)
		a.block("gap", a.place(), fmt.Sprintf(`{"reason":%q,"certain":true,"stream":null,"requested":%q,"resumesAt":%q}`, reason, text, a.place()), 0)
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		changed := f.wait()
		if a.step() {
			return
		}
		if a.fault.StallAfter > 0 && a.sent >= a.fault.StallAfter {
			<-r.Context().Done()
			return
		}
		select {
		case <-changed:
		case <-beat.C:
			a.block("cursor", a.place(), "{}", 0)
		case <-r.Context().Done():
			return
		}
	}
}

// step sends the available events and reports whether that was the end.
func (a *edgeAnswer) step() bool {
	f := a.edge
	for {
		f.mu.Lock()
		end, closed := uint64(len(f.events)), f.closed
		var e edgeEvent
		if a.cursor < end {
			e = f.events[a.cursor]
		}
		f.mu.Unlock()
		if a.cursor == end {
			if closed {
				a.block("close", a.place(), `{"status":"closed"}`, 0)
			}
			return closed
		}
		a.cursor++
		if a.stream != "" && e.stream != a.stream {
			continue
		}
		a.message(e)
		a.sent++
		if a.fault.EndAfter == a.sent {
			return true
		}
		if a.fault.StallAfter == a.sent {
			return false
		}
	}
}

func (a *edgeAnswer) message(e edgeEvent) {
	if !a.envelope {
		a.block(e.typ, a.place(), e.message, 0)
		return
	}
	typ := e.typ
	if typ == "" {
		typ = "message"
	}
	data, err := json.Marshal(map[string]any{
		"id": eventID(e.stream, a.cursor), "stream": e.stream, "type": typ,
		"time": time.Unix(int64(a.cursor), 0).UTC(), "message": json.RawMessage(e.message), //nolint:gosec // small
	})
	if err != nil {
		panic(err)
	}
	a.block("", a.place(), string(data), 0)
}

func (a *edgeAnswer) place() string { return eventID(a.stream, a.cursor) }

func (a *edgeAnswer) block(typ, id, data string, retry time.Duration) {
	var b []byte
	if retry > 0 {
		b = sse.AppendRetry(b, retry)
	}
	_, _ = a.w.Write(sse.AppendEvent(b, id, typ, []byte(data)))
}
