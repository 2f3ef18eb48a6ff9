package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"rejoin/shared/waittest"
)

// openSessions returns the list of sessions as the janitor answers it, once it has read the log.
func (p *proc) openSessions() string {
	p.t.Helper()
	var a answer
	waittest.Until(p.t, "the janitor lists sessions", func() bool {
		a = do(p.t, http.MethodGet, p.url("--janitor-addr")+"/v1/sessions", "")
		return a.status == http.StatusOK
	})
	return a.body
}

// refusedOrigins counts requests of pages that may not make them.
const refusedOrigins = `rejoin_auth_refused_total{reason="origin"}`

// Without access control a browser needs no token, and asks no permission for a POST without a
// body: any page that is open on this machine could make sessions and sweep.
func TestAttackCrossOriginWrites(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--ack-timeout=9s")
	b := openBrowser(t)
	page := site(t, "")
	const none = `{"sessions":[],"total":0}`
	if got := p.openSessions(); got != none {
		t.Fatal(got)
	}
	var targets []string
	for _, flag := range []string{"--edge-addr", "--ingest-addr", "--janitor-addr"} {
		targets = append(targets, p.url(flag)+"/v1/sessions", p.url(flag)+"/v1/sweep")
	}
	list := `["` + strings.Join(targets, `","`) + `"]`
	send := `window.answered = 0; ` + list + `.forEach((url) => fetch(url, {method: 'POST', mode: 'no-cors'}).finally(() => { answered++ })); true`
	done := fmt.Sprintf("answered == %d", len(targets))
	for name, url := range map[string]string{
		"another port": page,
		"another site": strings.Replace(page, "127.0.0.1", "localhost", 1),
		"a sandbox":    site(t, "sandbox allow-scripts"), // its origin is null
	} {
		b.do(chromedp.Navigate(url))
		script[bool](b, send)
		b.until(done)
		if got := p.openSessions(); got != none {
			t.Errorf("%s: there are sessions: %s", name, got)
		}
	}
	b.do(chromedp.Navigate(page))
	script[bool](b, `{
		const frame = document.createElement('iframe')
		frame.name = 'target'
		document.body.append(frame)
		const form = document.createElement('form')
		Object.assign(form, {method: 'post', action: '`+targets[0]+`', target: 'target', enctype: 'text/plain'})
		document.body.append(form)
		form.submit()
	} true`)
	// A request refused for its origin never reaches a route, a sweep neither.
	waittest.Until(t, "all requests are refused for their origin", func() bool { return p.metric(refusedOrigins) == float64(3*len(targets)+1) })
	if got := p.openSessions(); got != none {
		t.Errorf("a form: there are sessions: %s", got)
	}

	b.onOrigin(p) // pages of its own do as they did
	script[bool](b, `window.status = 0; fetch('/v1/sessions', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"session":"own"}'}).then((answer) => { window.answered = answer.status }); true`)
	b.until("window.answered == 201")
}
