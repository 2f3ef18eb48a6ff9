package adminpage

import (
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

func file(t *testing.T, name string) string {
	t.Helper()
	body, err := fs.ReadFile(Files, name)
	if err != nil || len(body) == 0 {
		t.Fatalf("%s: %v", name, err)
	}
	return string(body)
}

var scripts = []string{"app.js", "session.js", "dom.js"}

func TestEverythingThatThePageRefersToIsServed(t *testing.T) {
	var paths []string
	for _, r := range Routes() {
		paths = append(paths, r.Path)
	}
	html := file(t, "index.html")
	var refs []string
	for _, ref := range reference.FindAllStringSubmatch(html, -1) {
		refs = append(refs, ref[1])
	}
	for _, name := range scripts {
		for _, m := range imported.FindAllStringSubmatch(file(t, name), -1) {
			refs = append(refs, "/admin/"+strings.TrimPrefix(m[1], "./"))
		}
	}
	served := 0
	for _, ref := range refs {
		if strings.HasPrefix(ref, "data:") || strings.HasPrefix(ref, "#") {
			continue
		}
		if !slices.Contains(paths, ref) {
			t.Errorf("%q is not served", ref)
		}
		served++
	}
	if served < 6 {
		t.Errorf("found %d references", served)
	}
	entries, err := fs.ReadDir(Files, ".")
	if err != nil || len(entries)+1 != len(paths) { // and the shared style
		t.Errorf("%d files are embedded and %d served, %v", len(entries), len(paths), err)
	}
}

// The policy allows nothing inline: an inline script, handler or style would silently do
// nothing in a browser.
func TestThePageWorksUnderItsOwnPolicy(t *testing.T) {
	for _, bad := range []string{`<style`, ` style=`, `<script>`, ` onclick=`, ` onload=`, `javascript:`, `"http://`, `"https://`} {
		if strings.Contains(file(t, "index.html"), bad) {
			t.Errorf("index.html contains %q", bad)
		}
	}
	for _, name := range scripts {
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "import(", "https://", "localStorage", "sessionStorage"} {
			if strings.Contains(file(t, name), bad) {
				t.Errorf("%s contains %q", name, bad)
			}
		}
	}
	for _, bad := range []string{"@import", "url("} {
		if strings.Contains(file(t, "style.css"), bad) {
			t.Errorf("style.css contains %q", bad)
		}
	}
}

func TestEveryElementThatTheScriptsLookUpExistsOnce(t *testing.T) {
	var ids []string
	for _, m := range elementID.FindAllStringSubmatch(file(t, "index.html"), -1) {
		if slices.Contains(ids, m[1]) {
			t.Errorf("id %q stands twice in index.html", m[1])
		}
		ids = append(ids, m[1])
	}
	looked := 0
	for _, name := range scripts {
		for _, m := range lookedUp.FindAllStringSubmatch(file(t, name), -1) {
			if looked++; !slices.Contains(ids, m[1]) {
				t.Errorf("%s looks up #%s, which index.html lacks", name, m[1])
			}
		}
	}
	if looked == 0 {
		t.Error("nothing is looked up; has the helper been renamed?")
	}
}
