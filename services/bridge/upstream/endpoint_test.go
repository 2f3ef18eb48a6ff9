package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"rejoin/shared/must"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
)

// A POST whose connection breaks is not made again, whatever it has in its header: the server may have begun it.
func TestEndpoint_PostsOnce(t *testing.T) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		var posted atomic.Int64
		up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get(name) != "k" {
				t.Error("the field is missing")
			}
			if _, err := io.ReadAll(r.Body); err != nil || posted.Add(1) > 1 { // the connection is used again
				panic(http.ErrAbortHandler)
			}
		}))
		e := NewEndpoint(up.URL, nil, []string{name}, quota.NewPool(10))
		for range 2 {
			if resp, err := e.Do(t.Context(), http.MethodPost, e.Chosen(http.Header{name: {"k"}}), []byte("{}")); err == nil {
				Finish(resp)
			}
		}
		if n := posted.Load(); n != 2 {
			t.Errorf("with %s the server has %d requests", name, n)
		}
		e.Close()
		up.Close()
	}
}

// A network that drops all packets does not end a connection of HTTP/2, and each request that is given up leaves it to the
// next one.
func TestEndpoint_DeadConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEndpoint("http://server", nil, nil, quota.NewPool(10))
		defer e.Close()
		transport, _ := e.client.Transport.(*http.Transport)
		transport.Protocols = &http.Protocols{}
		transport.Protocols.SetUnencryptedHTTP2(true)
		dials := 0
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			dials++
			client, server := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, server) }() // until the client closes it
			return client, nil
		}
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if resp, err := e.Do(ctx, http.MethodPost, nil, []byte("{}")); err == nil {
				Finish(resp)
			}
			cancel()
		}
		if dials < 2 {
			t.Error("the second request was made on the dead connection")
		}
	})
}

// Each connection to the MCP server is a file of the program.
func TestEndpoint_FilesAreBounded(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer up.Close()
	files := quota.NewPool(1)
	e := NewEndpoint(up.URL, nil, nil, files)
	defer e.Close()
	first, err := e.Do(t.Context(), http.MethodGet, nil, nil)
	must.NoError(t, err)
	second, err := e.Do(t.Context(), http.MethodGet, nil, nil)
	if !errors.Is(err, ErrFiles) {
		t.Errorf("with all files taken: %v", err)
	}
	if err == nil {
		_ = second.Body.Close()
	}
	if a := Unreachable(err); a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("it is answered %d %v", a.Status, a.Header)
	}
	_ = first.Body.Close()
	waittest.Until(t, "the file is given back", func() bool { return files.Used() == 0 })
}
