// Package pagestest tests the pages that package pages serves.
package pagestest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/must"
	"rejoin/shared/web"
	"rejoin/shared/web/pages"
)

var (
	reference = regexp.MustCompile(`(?:src|href|action)="([^"]*)"`)
	imported  = regexp.MustCompile(`(?m)^import\b.*?['"]([^'"]*)['"]`)
	elementID = regexp.MustCompile(`\bid="([^"]*)"`)
	lookedUp  = regexp.MustCompile(`\$\('([^']*)'\)`)
)

// bad has the texts of code that the policy does not allow, so that it would silently do nothing
// in a browser, that fetches from elsewhere, and that builds HTML.
var bad = map[string][]string{
	"text/html; charset=utf-8": {`<style`, ` style=`, `<script>`, ` onclick=`, ` onload=`, `javascript:`, `"http://`, `"https://`},
	"text/javascript; charset=utf-8": {
		"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "import(", "https://",
	},
	"text/css; charset=utf-8": {"@import", "url("},
}

// Check reports the parts of a page that would not work in a browser, and returns its files by
// their paths. others are paths that other services serve.
func Check(t *testing.T, routes []web.Route, others ...string) (files map[string]string) {
	t.Helper()
	app := fiber.New()
	web.Mount(app, routes...)
	files = map[string]string{}
	var refs, ids, looked []string
	for _, r := range routes {
		file, mediaType := get(t, app, r.Path)
		files[r.Path] = file
		if bad[mediaType] == nil {
			t.Errorf("%s is %q", r.Path, mediaType)
		}
		for _, text := range bad[mediaType] {
			if strings.Contains(file, text) {
				t.Errorf("%s contains %q", r.Path, text)
			}
		}
		switch mediaType {
		case "text/html; charset=utf-8":
			refs = append(append(refs, r.Path), found(reference, file)...)
			ids = append(ids, found(elementID, file)...)
		case "text/javascript; charset=utf-8":
			for _, ref := range found(imported, file) {
				if strings.HasPrefix(ref, "./") {
					ref = path.Join(path.Dir(r.Path), ref)
				}
				refs = append(refs, ref)
			}
			looked = append(looked, found(lookedUp, file)...)
		}
	}
	for _, ref := range refs {
		if files[ref] == "" && !slices.Contains(others, ref) && !strings.HasPrefix(ref, "data:") && !strings.HasPrefix(ref, "#") {
			t.Errorf("%q is not served", ref)
		}
	}
	for path := range files {
		if !slices.Contains(refs, path) {
			t.Errorf("%s is served for nothing", path)
		}
	}
	checkElements(t, ids, looked)
	return files
}

func found(pattern *regexp.Regexp, file string) (all []string) {
	for _, m := range pattern.FindAllStringSubmatch(file, -1) {
		all = append(all, m[1])
	}
	return all
}

func checkElements(t *testing.T, ids, looked []string) {
	t.Helper()
	slices.Sort(ids)
	for i, id := range ids {
		if i > 0 && ids[i-1] == id {
			t.Errorf("id %q stands twice in index.html", id)
		}
	}
	for _, id := range looked {
		if !slices.Contains(ids, id) {
			t.Errorf("#%s is looked up, which index.html lacks", id)
		}
	}
	if len(looked) == 0 {
		t.Error("nothing is looked up; has the helper been renamed?")
	}
}

func get(t *testing.T, app *fiber.App, url string) (file, mediaType string) {
	t.Helper()
	resp, err := app.Test(httptest.NewRequestWithContext(t.Context(), http.MethodGet, url, nil), -1)
	must.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || len(body) == 0 || resp.StatusCode != http.StatusOK {
		t.Errorf("%s is answered %d with %d bytes, %v", url, resp.StatusCode, len(body), err)
	}
	if policy := resp.Header.Get("Content-Security-Policy"); policy != pages.ContentSecurityPolicy {
		t.Errorf("%s has the policy %q", url, policy)
	}
	return string(body), resp.Header.Get("Content-Type")
}
