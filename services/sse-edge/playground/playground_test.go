package playground_test

import (
	"regexp"
	"strings"
	"testing"

	"rejoin/services/sse-edge/playground"
	"rejoin/shared/web/pages/pagestest"
)

func TestPage_Browser(t *testing.T) {
	html := pagestest.Check(t, playground.Routes(), "/rejoin.js", "/admin")["/"]
	for _, id := range []string{
		"session", "stream", "connect", "cut", "resume", "publish", "auto", "message", "state", "cursor", "events",
		"count-received", "count-resumed", "count-gaps", "count-duplicates", "count-out-of-order",
	} {
		if !strings.Contains(html, `id="`+id+`" data-testid="`+id+`"`) {
			t.Errorf("index.html lacks the element %q with its data-testid", id)
		}
	}
	// Until the script enables them: the browser would send the form and load the page without
	// the target in its address.
	for _, button := range regexp.MustCompile(`<button[^>]*type="submit"[^>]*>`).FindAllString(html, -1) {
		if !strings.Contains(button, " disabled") {
			t.Errorf("index.html has the enabled button %s", button)
		}
	}
}
