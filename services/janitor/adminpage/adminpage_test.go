package adminpage_test

import (
	"strings"
	"testing"

	"rejoin/services/janitor/adminpage"
	"rejoin/shared/web/pages/pagestest"
)

func TestPage_Browser(t *testing.T) {
	files := pagestest.Check(t, adminpage.Routes(), "/")
	for path, file := range files {
		for _, store := range []string{"localStorage", "sessionStorage"} {
			if strings.Contains(file, store) {
				t.Errorf("%s keeps something in %s, perhaps a token", path, store)
			}
		}
	}
}
