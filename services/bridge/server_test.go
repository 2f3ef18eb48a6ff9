package bridge

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// server is an MCP server whose answers a test sets.
type server struct {
	*httptest.Server
	t testing.TB

	mu       sync.Mutex
	on       map[string]func(w *writing, r *http.Request, m rpc.Message) // by JSON-RPC method
	get      func(w *writing, r *http.Request)
	onDelete func() // nil: DELETE is answered at once
	deleted  []string
	seen     []string // bodies of POSTs
	headers  []http.Header
	session  string // of initialize; empty: none
	result   string // of initialize
}

// writing writes an answer of the server.
type writing struct {
	http.ResponseWriter
}

func (w *writing) stream() {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	w.flush()
}

func (w *writing) flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

func (w *writing) send(id, data string) {
	if id != "" {
		_, _ = fmt.Fprintf(w, "id: %s\n", id)
	}
	_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
	w.flush()
}

// progress sends a notification of a request's progress.
func (w *writing) progress(id string, m rpc.Message) {
	w.send(id, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":%s}}`, m.Param("_meta", "progressToken")))
}

// ask sends a question with an ID.
func (w *writing) ask(event, id string) {
	w.send(event, fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"elicitation/create","params":{}}`, id))
}

// result sends a tool's result.
func (w *writing) result(id string, m rpc.Message) {
	w.send(id, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"content":[]}}`)
}

func (w *writing) json(data string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, data)
}

func response(id any) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
}

func note(n int) string { return fmt.Sprintf(`{"jsonrpc":"2.0","method":"note","params":{"n":%d}}`, n) }

func newServer(t testing.TB) *server {
	t.Helper()
	s := &server{t: t, on: map[string]func(*writing, *http.Request, rpc.Message){}, session: "up-"}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	s.on[rpc.MethodInitialize] = func(w *writing, _ *http.Request, m rpc.Message) {
		s.mu.Lock()
		if s.session != "" {
			w.Header().Set(upstream.HeaderSession, s.session+uuid.NewString())
		}
		s.mu.Unlock()
		w.json(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + s.result + `}`)
	}
	s.has("{}")
	return s
}

// has sets the capabilities of a server with sessions.
func (s *server) has(capabilities string) {
	s.result = `{"protocolVersion":"2025-11-25","capabilities":` + capabilities + `,"serverInfo":{"name":"s","version":"1"}}`
}

// handle sets how a method is answered; "" is for responses.
func (s *server) handle(method string, f func(w *writing, r *http.Request, m rpc.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on[method] = f
}

// before has f called before each request of a method, which is then served as it was until now.
func (s *server) before(method string, f func()) {
	serve := s.on[method]
	s.handle(method, func(w *writing, r *http.Request, m rpc.Message) {
		f()
		serve(w, r, m)
	})
}

// responds has requests of a method get a response with a result or an error.
func (s *server) responds(method, outcome string) {
	s.handle(method, func(w *writing, _ *http.Request, m rpc.Message) {
		w.json(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,` + outcome + `}`)
	})
}

// hangs has requests of a method get a stream that begins with messages, and has no end. over receives a value when
// such a request has ended.
func (s *server) hangs(method string, messages ...string) (over <-chan struct{}) {
	ended := make(chan struct{}, 100)
	s.handle(method, func(w *writing, r *http.Request, _ rpc.Message) {
		w.stream()
		for _, data := range messages {
			w.send("", data)
		}
		<-r.Context().Done()
		ended <- struct{}{}
	})
	return ended
}

// reports has the server's tools report progress, and respond.
func (s *server) reports() {
	s.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		w.stream()
		w.progress("", m)
		w.result("", m)
	})
}

// onAnswer has f called with each answer to a question, before the answer is accepted.
func (s *server) onAnswer(f func(m rpc.Message)) {
	s.handle("", func(w *writing, _ *http.Request, m rpc.Message) {
		if m.IsResponse() { // and not the check that the server can be reached
			f(m)
		}
		w.WriteHeader(http.StatusAccepted)
	})
}

func (s *server) onGet(f func(w *writing, r *http.Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.get = f
}

// onResume is onGet of a server that opens no stream for its own messages: f continues a stream.
func (s *server) onResume(f func(w *writing, r *http.Request)) {
	s.onGet(func(w *writing, r *http.Request) {
		if r.Header.Get("Last-Event-ID") == "" {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.stream()
		f(w, r)
	})
}

// ended returns the sessions that were ended, in their order.
func (s *server) ended() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.deleted)
}

// posted returns how often a body that holds text was posted.
func (s *server) posted(text string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, data := range s.seen {
		if strings.Contains(data, text) {
			n++
		}
	}
	return n
}

func (s *server) serve(rw http.ResponseWriter, r *http.Request) {
	w := &writing{rw}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.headers = append(s.headers, r.Header)
	get := s.get
	s.mu.Unlock()
	switch r.Method {
	case http.MethodGet:
		if get == nil {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		get(w, r)
		return
	case http.MethodDelete:
		s.mu.Lock()
		s.deleted = append(s.deleted, r.Header.Get(upstream.HeaderSession))
		hang := s.onDelete
		s.mu.Unlock()
		if hang != nil {
			hang()
		}
		return
	}
	all, _, err := rpc.Messages(data)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	m, _ := rpc.ParseMessage(all[0])
	s.mu.Lock()
	s.seen = append(s.seen, string(data))
	method := ""
	if m.Method != nil {
		method = *m.Method
	}
	f := s.on[method]
	s.mu.Unlock()
	switch {
	case f != nil:
		f(w, r, m)
	case m.IsRequest():
		w.json(response(m.ID))
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}
