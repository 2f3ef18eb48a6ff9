package playground

import (
	"bytes"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	reference = regexp.MustCompile(`(?:src|href|action)="([^"]*)"`)
	imported  = regexp.MustCompile(`(?m)^import\b.*?['"]([^'"]*)['"]`)
	elementID = regexp.MustCompile(`\bid="([^"]*)"`)
	lookedUp  = regexp.MustCompile(`\$\('([^']*)'\)`)
)

func page(t *testing.T, path string) string {
	t.Helper()
	body, _, ok := Asset(path)
	if !ok || len(body) == 0 {
		t.Fatalf("Asset(%q) has no body", path)
	}
	return string(body)
}

func TestEveryAssetThatThePageRefersToIsServed(t *testing.T) {
	refs := reference.FindAllStringSubmatch(page(t, "/"), -1)
	served := 0
	for _, ref := range refs {
		if strings.HasPrefix(ref[1], "data:") {
			continue
		}
		if _, _, ok := Asset(ref[1]); !ok {
			t.Errorf("index.html refers to %q, which is not served", ref[1])
		}
		served++
	}
	if served < 2 {
		t.Fatalf("found %d references in index.html, want at least the script and the style sheet", served)
	}
}

func TestEveryEmbeddedFileIsServedWithItsType(t *testing.T) {
	want := map[string]string{"index.html": "text/html", "app.js": "text/javascript", "style.css": "text/css"}
	paths := map[string]string{"index.html": "/", "app.js": "/playground/app.js", "style.css": "/playground/style.css"}
	entries, err := fs.ReadDir(Files, ".")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(want) {
		t.Errorf("%d files are embedded, want %d", len(entries), len(want))
	}
	for _, e := range entries {
		body, contentType, ok := Asset(paths[e.Name()])
		if !ok || !strings.HasPrefix(contentType, want[e.Name()]+";") {
			t.Errorf("Asset(%q) = %q, %v; want %s", paths[e.Name()], contentType, ok, want[e.Name()])
		}
		file, err := fs.ReadFile(Files, e.Name())
		if err != nil || !bytes.Equal(file, body) {
			t.Errorf("Asset(%q) is not the file %s (%v)", paths[e.Name()], e.Name(), err)
		}
	}
}

func TestOtherPathsAreNotServed(t *testing.T) {
	for _, path := range []string{"", "/index.html", "/playground", "/playground/", "/playground/../app.js", "/playground/playground.go", "/v1/sessions"} {
		if _, _, ok := Asset(path); ok {
			t.Errorf("Asset(%q) is served", path)
		}
	}
}

// The policy allows nothing inline: an inline script, handler or style would
// silently do nothing in a browser.
func TestThePageWorksUnderItsOwnPolicy(t *testing.T) {
	html, script, style := page(t, "/"), page(t, "/playground/app.js"), page(t, "/playground/style.css")
	for _, bad := range []string{`<style`, ` style=`, `<script>`, ` onclick=`, ` onload=`, `javascript:`, `"http://`, `"https://`} {
		if strings.Contains(html, bad) {
			t.Errorf("index.html contains %q", bad)
		}
	}
	for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "import(", "https://"} {
		if strings.Contains(script, bad) {
			t.Errorf("app.js contains %q", bad)
		}
	}
	for _, m := range imported.FindAllStringSubmatch(script, -1) {
		if m[1] != "/rejoin.js" {
			t.Errorf("app.js imports %q", m[1])
		}
	}
	for _, bad := range []string{"@import", "url("} {
		if strings.Contains(style, bad) {
			t.Errorf("style.css contains %q", bad)
		}
	}
}

func TestEveryElementThatTheScriptLooksUpExistsOnce(t *testing.T) {
	var ids []string
	for _, m := range elementID.FindAllStringSubmatch(page(t, "/"), -1) {
		if slices.Contains(ids, m[1]) {
			t.Errorf("id %q stands twice in index.html", m[1])
		}
		ids = append(ids, m[1])
	}
	looked := lookedUp.FindAllStringSubmatch(page(t, "/playground/app.js"), -1)
	if len(looked) == 0 {
		t.Fatal("app.js looks up no element; has the helper been renamed?")
	}
	for _, m := range looked {
		if !slices.Contains(ids, m[1]) {
			t.Errorf("app.js looks up #%s, which index.html lacks", m[1])
		}
	}
}

func TestTheHandlesOfTestsExist(t *testing.T) {
	html := page(t, "/")
	for _, id := range []string{
		"session", "stream", "connect", "cut", "resume", "publish", "auto", "message", "state", "cursor", "events",
		"count-received", "count-resumed", "count-gaps", "count-duplicates", "count-out-of-order",
	} {
		if !strings.Contains(html, `id="`+id+`" data-testid="`+id+`"`) {
			t.Errorf("index.html lacks the element %q with its data-testid", id)
		}
	}
}
