package upstream

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"rejoin/shared/must"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
)

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
