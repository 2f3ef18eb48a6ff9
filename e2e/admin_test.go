package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/waittest"
)

// hostile is a name that would run as a script if HTML were built from it.
const hostile = `<img/src=x/onerror=window.hacked=1>`

// admin opens the admin page.
func (b *browser) admin(at string) {
	b.t.Helper()
	b.adminPage(at + "/admin")
}

// adminSession opens the page of an address at a session.
func (b *browser) adminSession(at, session string) {
	b.t.Helper()
	b.adminPage(at + "/admin#session=" + session)
}

func (b *browser) adminPage(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url), chromedp.WaitReady(`[data-testid="sessions"]`))
	b.helper()
	b.hurry() // it asks every two seconds
}

// shows waits until an element's text has a part.
func (b *browser) shows(id, part string) {
	b.t.Helper()
	b.until(fmt.Sprintf("byID('%s').textContent.includes(%q)", id, part))
}

// text returns an element's text.
func (b *browser) text(id string) string {
	b.t.Helper()
	return script[string](b, fmt.Sprintf("byID('%s').textContent", id))
}

// showsNothing makes sure that an element has no text.
func (b *browser) showsNothing(id, when string) {
	b.t.Helper()
	if text := b.text(id); strings.TrimSpace(text) != "" {
		b.t.Errorf("%s, the page shows as %s %q", when, id, text)
	}
}

func TestAdminPage_ShowsAndEndsASession(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--max-events-per-session=10", "--heartbeat=100ms", "--ack-timeout=9s")
	b := openBrowser(t)
	b.admin(p.api())
	b.shows("state", "live")
	b.until("!byID('no-sessions').hidden")

	// The page shows text from others unchanged.
	path := "/v1/sessions/" + url.PathEscape(hostile)
	made := fmt.Sprintf(`{"session":%q,"metadata":{"note":"<script>window.hacked=1</script>"}}`, hostile)
	p.create(made)
	publish := func(n int) {
		t.Helper()
		p.store(path+"/streams/"+url.PathEscape(hostile)+"/events", numbered(n), "Event-Type", hostile)
	}
	for n := 1; n <= 5; n++ {
		publish(n)
	}
	b.shows("sessions", hostile)
	b.press(`[data-testid="sessions"] a`)
	b.shows("session-title", hostile)
	b.shows("session-bars", "5 of 10 events")
	b.shows("session-bars", "1 of 100 open streams")
	b.shows("metadata", "<script>window.hacked=1</script>")
	b.shows("timeline", "Published 5 events")
	b.shows("timeline", hostile)

	s := p.subscribe(path+"/events", "")
	id := s.read(5).cursor
	b.shows("connections", "live")
	b.until("byID('connections').children.length == 1 && byID('connections').rows[0].cells[3].textContent == '5'")
	b.shows("timeline", "5 events so far")
	b.shows("timeline", "sent to 1 of 1")
	b.shows("count-clients", "1")
	s.cut()
	b.shows("timeline", "the client disconnected · 5 events sent")
	b.until("byID('connections').children.length == 0")

	for n := 6; n <= 9; n++ {
		publish(n)
	}
	s = p.subscribe(path+"/events", id)
	s.read(9)
	b.shows("timeline", "Resumed")
	b.shows("connections", "its cursor")
	s.cut()
	s = p.subscribe(path+"/events", "no-such-place")
	s.read(9)
	b.shows("timeline", "Gap: unknown")
	b.shows("timeline", "asked for events after no-such-place · resumed after ")
	newest := script[string](b, `[...byID('timeline').querySelector('.publish').querySelectorAll('.id')].at(-1).textContent`)
	if held := do(t, http.MethodGet, p.api()+path, "").body; !strings.Contains(held, `"`+newest+`"`) {
		t.Errorf("the timeline has the ID %s, of\n%s", newest, held)
	}

	// The overview has the gap as well, and that the session is nearly full.
	b.click("back")
	b.shows("reasons", "unknown")
	b.shows("gaps", hostile)
	b.shows("near", "90 % of its events")
	b.until("byID('count-gaps').textContent == '1' && byID('count-near').textContent == '1'")
	b.shows("settings", "per session 10 events")
	b.until("byID('spark-rate').firstElementChild.getAttribute('points') && byID('count-rate').textContent != '–'")
	b.accessible("the overview")
	b.press(`[data-testid="gaps"] a`)
	b.shows("session-title", hostile)
	b.shows("timeline", "Gap: unknown")
	b.shows("connections", "live")
	script[bool](b, "document.getElementById('metadata-more').open = true")
	b.scrolls()
	b.accessible("a session")

	// The page closes nothing before a confirmation.
	b.click("close")
	b.shows("confirm-name", hostile)
	if said := script[string](b, "document.querySelector('dialog').ariaDescribedByElements.map((e) => e.textContent).join(' ')"); !strings.Contains(said, hostile) {
		t.Errorf("the question is read out as %q", said)
	}
	b.accessible("the question before a close")
	b.click("confirm-no")
	b.until("!document.querySelector('dialog')")
	publish(10)
	b.shows("session-bars", "10 of 10 events")
	b.press(`[data-testid="streams"] button`)
	b.shows("confirm-title", "stream")
	b.click("confirm-yes")
	b.shows("ended", "The stream is closed.")
	b.until("byID('streams').querySelector('button').disabled")
	b.shows("session-facts", "open")
	b.click("clear")
	b.click("confirm-yes")
	b.shows("ended", "The session is closed and cleared.")
	b.shows("session-facts", "closed")
	b.shows("session-bars", "0 of 10 events")
	s.cut()
	if a := do(t, http.MethodGet, p.api()+path, ""); !strings.Contains(a.body, `"state":"closed"`) || !strings.Contains(a.body, `"events":0`) {
		t.Errorf("the session is %s", a.body)
	}
	if script[bool](b, "'hacked' in window || document.querySelector('img, script:not([src])') !== null") {
		t.Error("what others wrote became a part of the page")
	}
	b.showsNothing("problem", "at the end")
}

// The timeline reports that it lists only the newest entries, and is complete only since the oldest of them.
func TestAdminPage_TimelineOfManyEvents(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	if a := do(t, http.MethodPost, p.api()+streamPath("demo", "main"), numberedLines(1, 199), "Content-Type", "application/x-ndjson"); !strings.Contains(a.body, `"stopped":null}`) {
		t.Fatal(a.body)
	}
	b := openBrowser(t)
	b.adminSession(p.api(), "demo")
	b.shows("timeline", "Published 199 events")
	if hint := b.text("timeline-hint"); strings.Contains(hint, "newest") {
		t.Errorf("of 199 events the hint is %s", hint)
	}
	p.publish("demo", "main", 200, 201)
	b.shows("timeline-hint", "the newest 200 published · complete since ")
	s := p.subscribe(streamPath("demo", "main"), "")
	s.read(201)
	p.store(streamPath("demo", "main"), "1", "Event-Type", "\u202eabc")
	script[bool](b, faultyJS)
	script[bool](b, `window.faulty = (path) => !path.includes('/connections') ? null : served(path).then((answer) => answer.json())
		.then((answer) => Response.json({ ...answer, total: 10000 })); true`)
	b.until(`((text) => text?.includes('abc') && text.includes('sent to 1 of 1 listed'))(byID('timeline').querySelector('.publish')?.textContent)`)
	if moved := script[bool](b, `((type) => {
		const after = document.createRange()
		after.selectNode(type.nextSibling)
		return after.getBoundingClientRect().left < type.getBoundingClientRect().right
	})(byID('timeline').querySelector('.publish bdi'))`); moved {
		t.Error("what follows a right-to-left type stands before it")
	}
	b.until(`((last) => last.textContent.startsWith('Earlier events') && byID('timeline-hint').textContent.includes(last.querySelector('time').textContent))(byID('timeline').lastElementChild)`)
}

func TestAdminPage_FilterSortAndPaging(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	for n := range 60 {
		p.publish(fmt.Sprintf("session-%02d", n), "s", 1, 1+n/59)
	}
	// Else the second page may begin after less than fifty of them.
	waittest.Until(t, "the janitor has all sessions", func() bool {
		list := do(t, http.MethodGet, p.api()+"/v1/sessions?limit=100", "").body
		return strings.Count(list, `"session":"session-`) == 60 && p.retained("session-59", "s") == 2
	})
	b := openBrowser(t)
	b.admin(p.api())
	list := func(js string) {
		b.until("((names) => " + js + ")([...byID('sessions').querySelectorAll('.name')].map((e) => e.textContent))")
	}
	list("names.length == 50")
	b.shows("list-page", "1–50 of 60")
	// The second click comes before the response.
	if text := script[string](b, "byID('next').click(), byID('next').click(), byID('list-page').textContent"); text != "loading …" {
		t.Errorf("while a page is asked for, its number is %q", text)
	}
	list("names.length == 10")
	b.shows("list-page", "51–60 of 60")
	b.click("previous")
	list("names.length == 50")
	b.until("byID('previous').disabled")
	script[bool](b, "byID('next').focus(); true")
	b.click("next")
	list("names.length == 10")
	b.until("document.activeElement == byID('previous')") // the button for the next page is disabled
	b.click("first")
	list("names.length == 50")
	script[bool](b, "byID('sort').value = 'events', byID('sort').dispatchEvent(new Event('change')), byID('next').click(), true")
	list("names[0] == 'session-59'")
	b.do(chromedp.SendKeys(`[data-testid="filter"]`, "-0"))
	list("names.length == 10 && names[9] == 'session-09'")
	b.do(chromedp.SendKeys(`[data-testid="filter"]`, "nothing"))
	b.shows("no-sessions", "No sessions match.")

	// The janitor's own address has no ingest behind it.
	b.adminSession(p.url("--janitor-addr"), "session-07")
	b.shows("session-facts", "open")
	b.click("close")
	b.click("confirm-yes")
	b.shows("problem", "at the address that serves the whole API")

	p.kill()
	b.shows("state", "no answer")
	p.start()
	b.shows("state", "live")
}

func TestAdminPage_AsksForAToken(t *testing.T) {
	t.Parallel()
	p := startGuarded(t)
	alice := p.victim("s")
	b := openBrowser(t)
	b.admin(p.api())
	b.shows("state", "token needed")
	claims := func() string {
		return script[string](b, `['no-near', 'no-gaps', 'no-sessions'].filter((id) => !byID(id).hidden).join(' ')`)
	}
	if made := claims(); made != "" {
		t.Errorf("before there is data, the page shows %s", made)
	}
	use := func(token string) {
		script[bool](b, fmt.Sprintf("byID('token').value = %q; true", token))
		b.click("token-use")
	}
	use("nonsense…")
	b.shows("state", "token refused")
	if kept := script[string](b, "byID('token').value"); kept != "nonsense…" {
		t.Errorf("the field of the refused token has %q", kept)
	}
	b.accessible("the admin page with a refused token")
	use(alice)
	b.shows("state", "not allowed")
	script[bool](b, "byID('token-use').focus(); true")
	use(authtest.Token(t, "root", func(token *auth.Token) { token.Admin = true }))
	b.shows("state", "live")
	b.until("document.activeElement.id == 'main'") // the form is hidden
	b.shows("sessions", "s")
	b.until("document.getElementById('token-form').hidden && byID('token').value == ''")
	if made := claims(); made != "no-near no-gaps" {
		t.Errorf("with data, the page shows %s", made)
	}
	b.press(`[data-testid="sessions"] a`)
	b.until("document.getElementById('owner').textContent == 'Owner: alice'")
}

// Rows do not move away from under the pointer.
func TestAdminPage_RowsUnderThePointerThenUnknownSession(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	for _, name := range []string{"one", "two"} {
		p.publish(name, "s", 1, 1)
	}
	b := openBrowser(t)
	b.admin(p.api())
	script[bool](b, "byID('sort').value = 'events', byID('sort').dispatchEvent(new Event('change'))")
	order := "[...byID('sessions').querySelectorAll('.name')].map((e) => e.textContent).join(' ')"
	b.until(order + " == 'one two'")
	point := func(at string) {
		x := script[float64](b, fmt.Sprintf("byID('%s').getBoundingClientRect().x + 9", at))
		y := script[float64](b, fmt.Sprintf("byID('%s').getBoundingClientRect().y + 9", at))
		b.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x, y))
	}
	stays := func(under, publishTo string, events int, release func()) {
		t.Helper()
		before := script[string](b, order)
		p.publish(publishTo, "s", 2, events)
		b.until("byID('sessions').rows[1].cells[1].textContent == '" + strconv.Itoa(events) + "'")
		b.shows("list-page", "order held")
		if got := script[string](b, order); got != before {
			t.Errorf("under the %s, %q became %q", under, before, got)
		}
		release()
		b.until(order + " != '" + before + "'")
	}
	point("sessions")
	stays("pointer", "two", 3, func() { point("state") })
	script[bool](b, "byID('sessions').querySelector('a').focus(); true")
	stays("focus", "one", 5, func() { script[bool](b, "document.activeElement.blur(); true") })

	// A row that stays although its session is on the page no longer is marked.
	script[bool](b, faultyJS)
	script[bool](b, `byID('sessions').querySelector('a').focus()
		window.faulty = (path) => !path.startsWith('/v1/sessions?') ? null : served(path).then((answer) => answer.json())
			.then((list) => Response.json({ ...list, sessions: list.sessions.filter((s) => s.session == 'two') })); true`)
	b.shows("list-page", "order held, 1 outdated row")
	if past := b.text("sessions"); !script[bool](b, "byID('sessions').rows.length == 2 && byID('sessions').querySelector('.past').textContent.startsWith('one')") {
		t.Errorf("the rows are %s", past)
	}
	script[bool](b, "window.faulty = () => null; document.activeElement.blur(); true")
	b.until("byID('sessions').rows.length == 2 && !byID('sessions').querySelector('.past')")

	// The page shows nothing of a session that does not exist, until it begins.
	script[bool](b, "location.hash = '#session=nosuch'; true")
	b.shows("session-facts", "There is no session of this name.")
	b.accessible("an unknown session")
	if shown := script[string](b, `['close', 'clear', 'streams', 'connections', 'timeline'].filter((id) => byID(id).checkVisibility()).join(' ')`); shown != "" {
		t.Errorf("of a session that does not exist, the page shows %s", shown)
	}
	p.publish("nosuch", "s", 1, 1)
	b.shows("session-facts", "open")
	b.until("byID('close').checkVisibility() && byID('timeline').checkVisibility()")
	script[bool](b, "location.hash = '#session=*'; true") // which no session can be named
	b.shows("session-facts", "There is no session of this name.")
	b.shows("state", "live")
}

// faultyJS has window.faulty answer the requests of a page for which it returns something.
const faultyJS = `(() => {
	const served = fetch
	window.faulty = () => null
	window.fetch = (path, options) => faulty(path, options?.method ?? 'GET') ?? served(path, options)
	window.served = served
	window.signIn = () => Promise.resolve(new Response('<!doctype html><title>Sign in</title>'))
	return true
})()`

func TestAdminPage_AnswersOfOthers(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--ack-timeout=9s")
	p.create(`{"session":"one","metadata":{"account":9007199254740993}}`)
	p.publish("one", "s", 1, 3)
	p.publish("two", "s", 1, 1)
	b := openBrowser(t)
	b.adminSession(p.api(), "one")
	script[bool](b, faultyJS)
	faulty := func(js string) { script[bool](b, "window.faulty = (path, method) => "+js+"; true") }
	b.shows("session-bars", "3 of")
	b.shows("metadata", `"account": 9007199254740993`)
	script[bool](b, "document.getElementById('skip').click(); true")
	if at := script[string](b, "location.hash + ' ' + document.activeElement.id"); at != "#session=one main" {
		t.Errorf("after the link to the main part, address and focus are %s", at)
	}

	faulty("path.startsWith('/v1/') ? signIn() : null")
	b.shows("state", "failed")
	b.shows("detail", "was answered 200, but not by Rejoin. The shown data is outdated.")
	line := func() string {
		return script[string](b, "getComputedStyle(document.getElementById('page'), '::after').content")
	}
	if !strings.Contains(line(), "outdated") {
		t.Errorf("above a page with old data there is %s", line())
	}
	faulty("path.startsWith('/v1/') ? Promise.resolve(new Response('{}', { status: 503 })) : null")
	b.shows("state", "not ready")
	b.shows("detail", "The server answered 503 without a reason. The shown data is outdated.")
	faulty("null")
	b.shows("state", "live")
	if line() != "none" {
		t.Errorf("above a page with new data there is %s", line())
	}

	// Only Rejoin's answer proves that a session is closed.
	faulty("method == 'DELETE' ? signIn() : null")
	b.click("close")
	b.click("confirm-yes")
	b.shows("problem", "but not by Rejoin")
	b.showsNothing("ended", "after an answer of a proxy")

	// The outcome is shown with the session it is of.
	faulty("method == 'DELETE' ? new Promise((answer) => { window.answer = () => answer(new Response(null, { status: 204 })) }) : null")
	script[bool](b, "delete window.answer; true")
	b.click("close")
	b.click("confirm-yes")
	b.until("window.answer")
	script[bool](b, "location.hash = '#session=two'; true")
	b.shows("session-title", "two")
	script[bool](b, "answer(); true")
	b.until("document.getElementById('problem-line').dataset.shown == 'false'")
	b.showsNothing("ended", "of another session's close")
	faulty("null")
	b.shows("session-facts", "open")
	script[bool](b, "byID('close').focus(); true")
	b.click("close")
	b.click("confirm-yes")
	b.shows("session-facts", "closed")
	b.until("document.activeElement.id == 'main'")

	// A deleted session has no events.
	script[bool](b, "location.hash = '#session=one'; true")
	b.shows("session-bars", "3 of")
	faulty("path.startsWith('/v1/sessions/one') ? Promise.resolve(new Response('{}', { status: 404 })) : null")
	b.shows("session-facts", "There is no session of this name.")
	if held := b.text("session-bars"); held != "" || script[bool](b, "byID('metadata').checkVisibility()") {
		t.Errorf("of a deleted session the page shows %q, or its metadata", held)
	}

	// A failure is shown while the page is paused.
	b.click("pause")
	b.shows("state", "paused")
	faulty("path.startsWith('/v1/') ? Promise.reject(new TypeError('no network')) : null")
	script[bool](b, "location.hash = '#session=two'; true")
	b.shows("state", "no answer")
}

func TestAdminPage_ClocksAndStreamsUnderThePointer(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	p.publish("one", "a", 1, 1)
	p.publish("one", "b", 1, 1)
	b := openBrowser(t)
	b.adminSession(p.api(), "one")
	script[bool](b, faultyJS)
	b.until("byID('count-rate').textContent != '–'")

	// A browser whose clock jumps, as when its machine has slept.
	script[bool](b, `(() => {
		new MutationObserver(() => { window.lapsed ||= byID('count-rate').textContent == '–' }).observe(byID('count-rate'), { childList: true })
		const real = Date.now
		Date.now = () => real() + 3600000
		return true
	})()`)
	b.until("window.lapsed")
	if active := script[string](b, "byID('sessions').rows[0].cells[4].textContent + byID('session-facts').textContent"); strings.Contains(active, "60 min ago") || strings.HasPrefix(active, "60 min") {
		t.Errorf("in a browser that is an hour ahead, the session is shown as %s", active)
	}

	// The stream that newest names is the newest.
	script[bool](b, `(() => {
		window.newest = 'b'
		window.faulty = (path) => path != '/v1/sessions/one' ? null : served(path).then((answer) => answer.json()).then((one) => {
			for (const stream of one.streams) stream.newest = stream.stream == newest ? '2001-01-01T00:00:01Z' : '2001-01-01T00:00:00Z'
			return Response.json(one)
		})
		return true
	})()`)
	order := "[...byID('streams').rows].map((row) => row.cells[0].textContent).join(' ')"
	b.until(order + " == 'b a'")
	script[bool](b, "byID('streams').querySelector('button').focus(); window.newest = 'a'; true")
	p.publish("one", "b", 2, 3)
	b.until("[...byID('streams').rows].some((row) => row.cells[1].textContent == '3')")
	if got := script[string](b, order); got != "b a" {
		t.Errorf("with the focus on one of them, the order of the streams became %s", got)
	}
	script[bool](b, "document.activeElement.blur(); true")
	b.until(order + " == 'a b'")
}
