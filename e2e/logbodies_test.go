package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"rejoin/shared/event"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// secret is in every message of these tests, however broken it is.
const secret = "s3cret"

// broken are bodies that are no message.
func broken() []string {
	return []string{
		`{"jsonrpc":"2.0","method":"` + secret + `"`,
		`{"jsonrpc":"2.0","method":` + secret + `}`,
		secret, `"` + secret + `"`, `{"` + secret + `":1}`, "{\"jsonrpc\":\"2.0\",\"method\":\"" + secret + "\xff\"}",
		`{"jsonrpc":"` + secret + `","method":"a"}`,
		`{"jsonrpc":"2.0","` + secret + `":1,"` + secret + `":2}`,
		`{"jsonrpc":"2.0","id":{"` + secret + `":1},"method":"` + secret + `"}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":"` + secret + `","message":"` + secret + `"}}`,
		`{"jsonrpc":"2.0","method":"a","params":"` + secret + `"}`,
		`[{"jsonrpc":"2.0","method":"` + secret + `"},` + secret + `]`,
		`{"message":{"` + secret + `":1},"key":"` + strings.Repeat(secret, 100) + `"}`,
		`{"jsonrpc":"2.0","method":"a","params":["` + strings.Repeat(secret, 1<<18) + `"]}`, // too large
	}
}

// speakSecrets sends messages in all ways there are.
func speakSecrets(t *testing.T, p *proc) {
	good := `{"jsonrpc":"2.0","method":"a","params":{"x":"` + secret + `"}}`
	all := append(broken(), good)
	path := p.api() + streamPath("s", "t")
	for _, body := range all {
		for _, media := range []string{jsonType, "application/x-ndjson", "application/vnd.rejoin.messages+json", "application/vnd.rejoin.envelopes+json", "application/vnd.rejoin.envelopes+ndjson"} {
			for _, query := range []string{"", "?results=each"} {
				_, _ = try(http.MethodPost, path+query, body, "Content-Type", media) // one that is too large is cut off
			}
		}
		_, _ = try(http.MethodPost, p.api()+"/v1/sessions", `{"session":"m","metadata":`+body+`}`, "Content-Type", jsonType)
	}
	do(t, http.MethodPost, path, "["+good+","+good+"]", "Content-Type", "application/vnd.rejoin.messages+json")

	nc := p.nats(t)
	straight := event.Subject{Partition: event.Partition("d", partitions), Session: "d", Stream: "t"}.String()
	for _, body := range all {
		if int64(len(body)) < nc.MaxPayload() {
			must.Value(nc.Request("mcp.ingest.s.t", []byte(body), waittest.Timeout))(t)
			_, _ = nc.Request(straight, []byte(body), waittest.Timeout) // one is too large
		}
	}
	for _, path := range []string{streamPath("s", "t"), streamPath("d", "t")} {
		do(t, http.MethodGet, p.api()+path, "", "Accept", "application/json")
	}

	headers := []string{"Content-Type", jsonType, "Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2025-03-26"}
	post := func(session, body string) answer {
		a, _ := try(http.MethodPost, p.api()+"/mcp", body, append([]string{"Mcp-Session-Id", session}, headers...)...)
		return a
	}
	do(t, http.MethodPost, p.api()+"/mcp", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"a":"`+secret+`"}}`, headers...)
	session := initialize(t, p.api())
	for _, body := range all {
		post(session, body)
		post("none", body)
	}
	for _, tool := range []string{"result", "error", "invalid", "array", "stream"} {
		post(session, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`","x":"`+secret+`"}}`)
	}
}

// secretive is an MCP server that answers with secrets, and not always with messages.
func secretive(t *testing.T) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m struct {
			ID     json.RawMessage
			Params struct{ Name string }
		}
		_ = json.Unmarshal(body, &m) // which may be anything
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		case m.ID == nil:
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", jsonType)
		response := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"x":%q,"serverInfo":{"name":"u","version":"1"}}}`, m.ID, secret)
		switch m.Params.Name {
		case "error":
			w.WriteHeader(http.StatusInternalServerError)
			response = fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":1,"message":%q}}`, m.ID, secret)
		case "invalid":
			response = `{"jsonrpc":"2.0","` + secret + `":` + secret
		case "array":
			response = `[{"` + secret + `":1},` + secret + `]`
		case "stream":
			w.Header().Set("Content-Type", "text/event-stream")
			response = "data: {" + secret + "\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":{\"" + secret + "\":1}}\n\ndata: " + response + "\n\n"
		}
		_, _ = io.WriteString(w, response)
	}).URL
}

func TestProgramLog_HasNoMessages(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--log-level=debug", "--upstream="+secretive(t), "--interval=100ms", "--ack-timeout=9s")
	speakSecrets(t, p)
	p.stop()
	for line := range strings.Lines(p.log.String()) {
		if strings.Contains(line, secret) {
			t.Errorf("the log has %.300s", line)
		}
	}
	for _, want := range []string{"a message is stored", "a message is not stored", "request refused", "an MCP client is refused", "a bridge was asked"} {
		if !strings.Contains(p.log.String(), want) {
			t.Errorf("the log does not say that %s", want)
		}
	}
}

func TestProgramLog_HasMessagesWhenEnabled(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--log-level=debug", "--log-bodies", "--ack-timeout=9s")
	for body, status := range map[string]int{`{"jsonrpc":"2.0","method":"` + secret + `"}`: http.StatusCreated, `{` + secret: http.StatusBadRequest} {
		if a := do(t, http.MethodPost, p.api()+streamPath("s", "t"), body, "Content-Type", jsonType); a.status != status {
			t.Fatalf("%s is answered %d %s", body, a.status, a.body)
		}
	}
	p.stop()
	for _, want := range []string{`"msg":"a message is stored","session":"s","stream":"t"`, `"msg":"a message is not stored","session":"s","stream":"t"`} {
		if !strings.Contains(p.log.String(), want) {
			t.Errorf("the log has no %s", want)
		}
	}
	if !regexp.MustCompile(`"msg":"a message is stored".*` + secret).MatchString(p.log.String()) {
		t.Error("no message is shown")
	}
}
