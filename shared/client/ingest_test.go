package client_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"rejoin/shared/event"
)

// dupWindow is how long a log recognizes a key.
const dupWindow = 2 * time.Minute

// fakeIngest is an ingest over a log in memory, with faults.
type fakeIngest struct {
	mu       sync.Mutex
	sequence uint64
	stored   []logged
	keys     map[string]known
	faults   []ingestFault // of the next requests
	requests []seenRequest
	proxy    func(body []byte) (refuses int) // with a status; nil: nothing
	underway int                             // requests
	crowd    int                             // most requests at a time
}

type logged struct {
	path, id, typ, key, message string
}

type known struct {
	id string
	at time.Time
}

type seenRequest struct {
	path, auth string
	lines      int
}

// ingestFault is a fault of a request. The zero value is no fault.
type ingestFault struct {
	// Status refuses the request before any message was tried.
	Status     int
	Code       string
	RetryAfter int
	// HangUp closes the connection without an answer.
	HangUp bool
	// Lost answers Status or Garbage, or hangs up, but after everything was done.
	Lost bool
	// StopAt ends the work at this message (counted from 1) with the code StopCode:
	// the message's own, or, when Untried, one of it and all after it.
	StopAt   int
	StopCode string
	Untried  bool
	// Stored says that the message of an unknown outcome is stored nevertheless.
	Stored bool
	// Delay is how long each message takes.
	Delay time.Duration
	// Garbage is written instead of the answer.
	Garbage string
}

func (f *fakeIngest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	lines, err := requestLines(r)
	if err != nil {
		return // the request was cut
	}
	f.mu.Lock()
	var fault ingestFault
	if len(f.faults) > 0 {
		fault, f.faults = f.faults[0], f.faults[1:]
	}
	f.requests = append(f.requests, seenRequest{path, r.Header.Get("Authorization"), len(lines)})
	f.underway++
	f.crowd = max(f.crowd, f.underway)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.underway--
		f.mu.Unlock()
	}()
	switch {
	case r.URL.Query().Get("results") != "each", r.Header.Get("Content-Type") != "application/vnd.rejoin.envelopes+ndjson":
		problem(w, http.StatusUnsupportedMediaType, "unsupported_media_type", 0)
	case f.proxy != nil && f.proxy(bytes.Join(lines, nil)) != 0:
		problem(w, f.proxy(bytes.Join(lines, nil)), "", 0)
	case fault.HangUp, fault.Lost:
		if fault.Lost {
			f.work(io.Discard, path, lines, ingestFault{})
		}
		switch {
		case fault.HangUp:
			panic(http.ErrAbortHandler)
		case fault.Garbage != "":
			_, _ = io.WriteString(w, fault.Garbage)
		default:
			w.WriteHeader(fault.Status)
		}
	case fault.Status != 0:
		problem(w, fault.Status, fault.Code, fault.RetryAfter)
	default:
		w.Header().Set("Content-Type", "application/x-ndjson")
		if fault.Garbage != "" {
			_, _ = io.WriteString(w, fault.Garbage)
			return
		}
		f.work(flushed{w}, path, lines, fault)
	}
}

// work stores messages and writes the answer. It continues when its client has disconnected.
func (f *fakeIngest) work(w io.Writer, path string, lines [][]byte, fault ingestFault) {
	var stopped any
	tell := func(v map[string]any) {
		line, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		_, _ = w.Write(append(line, '\n'))
	}
	for i, line := range lines {
		time.Sleep(fault.Delay)
		if fault.StopAt == i+1 {
			if fault.Stored {
				f.store(path, line)
			}
			if !fault.Untried {
				tell(map[string]any{"index": i, "code": fault.StopCode, "detail": "a fault"})
				i++
			}
			stopped = map[string]any{"index": i, "code": "unavailable", "detail": "a fault"}
			break
		}
		id, duplicate, code := f.store(path, line)
		if code != "" {
			tell(map[string]any{"index": i, "code": code, "detail": "it is not wanted"})
			continue
		}
		tell(map[string]any{"index": i, "id": id, "duplicate": duplicate})
	}
	tell(map[string]any{"accepted": len(lines), "stopped": stopped}) // a publisher only checks that the counts are present
}

// unwanted is in messages that the server refuses.
const unwanted = "unwanted"

func (f *fakeIngest) store(path string, line []byte) (id string, duplicate bool, code string) {
	var envelope struct {
		Key     string          `json:"key"`
		Type    string          `json:"type"`
		Message json.RawMessage `json:"message"`
	}
	if json.Unmarshal(line, &envelope) != nil || event.CheckJSON(envelope.Message) != nil || bytes.Contains(line, []byte(unwanted)) {
		return "", false, "invalid_message"
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key := path + " " + envelope.Key
	if k, ok := f.keys[key]; ok && time.Since(k.at) < dupWindow {
		return k.id, true, ""
	}
	f.sequence++
	id = eventID("s", f.sequence)
	if f.keys == nil {
		f.keys = map[string]known{}
	}
	f.keys[key] = known{id, time.Now()}
	f.stored = append(f.stored, logged{path, id, envelope.Type, envelope.Key, string(envelope.Message)})
	return id, false, ""
}

func (f *fakeIngest) log() []logged {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.stored)
}

func (f *fakeIngest) seen() []seenRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// sizes returns how many messages each request had.
func (f *fakeIngest) sizes() (all []int) {
	for _, r := range f.seen() {
		all = append(all, r.lines)
	}
	return all
}

func requestLines(r *http.Request) ([][]byte, error) {
	var lines [][]byte
	in := bufio.NewReader(r.Body)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 && err == nil {
			lines = append(lines, line)
		}
		if err == io.EOF { // a cut is io.ErrUnexpectedEOF
			return lines, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// problem answers with a problem document, or with another document without a code.
func problem(w http.ResponseWriter, status int, code string, retryAfter int) {
	if retryAfter > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(retryAfter))
	}
	if code == "" {
		http.Error(w, strings.ToLower(http.StatusText(status)), status)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"type":"urn:rejoin:problem:%s","title":"A fault.","status":%d,"code":%q}`, code, status, code)
}

// flushed sends every line at once.
type flushed struct{ w http.ResponseWriter }

func (f flushed) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if flusher, ok := f.w.(http.Flusher); ok {
		flusher.Flush()
	}
	return n, err
}
