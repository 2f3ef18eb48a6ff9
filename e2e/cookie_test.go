package e2e

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"

	"rejoin/shared/waittest"
)

// site serves an empty page of an origin of its own, under a policy.
func site(t *testing.T, policy string) (url string) {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Content-Security-Policy", policy)
		_, _ = io.WriteString(w, "<!doctype html><title>a page</title>") // the browser may have disconnected
	}).URL
}

// A page that exchanged its token for a cookie streams with EventSource, which can send no
// token; pages of origins that are not listed can do neither.
func TestBrowser_StreamsWithACookie(t *testing.T) {
	t.Parallel()
	listed, other := site(t, ""), site(t, "")
	p := startGuarded(t, "--cors-origins="+listed)
	alice := p.victim("s")
	b := openBrowser(t)
	exchange := fmt.Sprintf(`window.answered = 0; window.failed = ''
		fetch('%s/v1/cookie', {method: 'POST', credentials: 'include', headers: {Authorization: 'Bearer %s'}})
			.then((answer) => { window.answered = answer.status }, (error) => { window.failed = String(error) }); true`, p.api(), alice)
	open := fmt.Sprintf(`window.data = ''; window.source = new EventSource('%s%s', {withCredentials: true})
		source.onmessage = (event) => { window.data = event.data }; true`, p.api(), streamPath("s", "main"))

	b.do(chromedp.Navigate(other))
	script[bool](b, exchange)
	b.until("failed")
	script[bool](b, open)
	b.until("source.readyState == EventSource.CLOSED") // no cookie, and no reading either

	b.do(chromedp.Navigate(listed))
	script[bool](b, open)
	b.until("source.readyState == EventSource.CLOSED")
	script[bool](b, exchange)
	b.until("answered == 204")
	if cookies := script[string](b, "document.cookie"); cookies != "" {
		t.Errorf("a script can read %q", cookies)
	}
	script[bool](b, open)
	b.until(fmt.Sprintf("data == %q", numbered(1)))

	// The browser has the cookie now, and sends it along for any page of this machine.
	b.do(chromedp.Navigate(other))
	script[bool](b, open)
	b.until("source.readyState == EventSource.CLOSED")
	if data := script[string](b, "data"); data != "" {
		t.Errorf("a page that is not listed reads %s", data)
	}
	create := fmt.Sprintf(`window.answered = 0
		fetch('%s/v1/sessions', {method: 'POST', mode: 'no-cors', credentials: 'include'}).finally(() => { window.answered = 1 }); true`, p.api())
	script[bool](b, create) // which has no preflight
	b.until("answered == 1")
	waittest.Until(t, "the request was refused", func() bool { return p.metric(refusedOrigins) == 1 })
	p.unharmed(alice, "s")

	b.do(chromedp.Navigate(listed))
	script[bool](b, fmt.Sprintf(`window.answered = 0
		fetch('%s/v1/cookie', {method: 'DELETE', credentials: 'include'}).then((answer) => { window.answered = answer.status }); true`, p.api()))
	b.until("answered == 204")
	script[bool](b, open)
	b.until("source.readyState == EventSource.CLOSED") // as before it had one
}
