package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"rejoin/shared/auth/authtest"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// browser is a tab with a fresh profile.
type browser struct {
	t   testing.TB
	ctx context.Context
}

// browserProgram returns the path of a Chromium, by the names that e2e/programs.sh knows, or "". The one
// without a window takes half of the processor time for the same pages.
func browserProgram() string {
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// chromium is the Chromium that tests share as long as one of them has a tab in it.
var chromium struct {
	mu   sync.Mutex
	tabs int
	ctx  context.Context //nolint:containedctx // chromedp's
	stop func() error
}

// openBrowser opens a tab with a profile of its own: in a Chromium of its own if there are more
// options, or in that of all tests.
func openBrowser(t testing.TB, more ...chromedp.ExecAllocatorOption) *browser {
	t.Helper()
	if *overTLS { // with a certificate of its own
		more = append(more, chromedp.IgnoreCertErrors)
	}
	if len(more) > 0 {
		ctx, stop := startChromium(t, more...)
		t.Cleanup(func() {
			if err := stop(); err != nil {
				t.Errorf("closing the browser: %v", err)
			}
		})
		return &browser{t: t, ctx: ctx}
	}
	c := &chromium
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tabs == 0 {
		c.ctx, c.stop = startChromium(t)
	}
	c.tabs++
	ctx, _ := chromedp.NewContext(c.ctx, chromedp.WithNewBrowserContext()) // ended by Cancel below
	t.Cleanup(func() {
		err := chromedp.Cancel(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.tabs--; c.tabs == 0 {
			err = errors.Join(err, c.stop())
		}
		if err != nil {
			t.Errorf("closing the browser: %v", err)
		}
	})
	// The tab lives as long as the context of the first call.
	must.NoError(t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
	return &browser{t: t, ctx: ctx}
}

func startChromium(t testing.TB, more ...chromedp.ExecAllocatorOption) (ctx context.Context, stop func() error) {
	t.Helper()
	path := browserProgram()
	if path == "" {
		t.Fatal("there is no Chromium; see e2e/programs.sh")
	}
	alloc, end := chromedp.NewExecAllocator(context.Background(), append([]chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path),
		chromedp.NoFirstRun,
		chromedp.NoDefaultBrowserCheck,
		chromedp.Headless,
		chromedp.NoSandbox,
		chromedp.DisableGPU,
		chromedp.Flag("disable-background-networking", true),
		// No tab of it counts as one in the background.
		chromedp.Flag("disable-background-timer-throttling", true),
		chromedp.Flag("disable-backgrounding-occluded-windows", true),
		chromedp.Flag("disable-renderer-backgrounding", true),
	}, more...)...)
	ctx, _ = chromedp.NewContext(alloc) // ended by Cancel below
	// The browser lives as long as the context of the first call.
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		end()
		t.Fatal(err)
	}
	return ctx, func() error {
		defer end()
		return chromedp.Cancel(ctx)
	}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waittest.Timeout)
	defer cancel()
	must.NoError(b.t, chromedp.Do(ctx, steps...))
}

// script evaluates JavaScript.
func script[T any](b *browser, js string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waittest.Timeout)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](js))
	if err != nil {
		b.t.Fatalf("%v in %s", err, js)
	}
	return value
}

// until waits until an expression is true.
func (b *browser) until(js string) {
	b.t.Helper()
	waittest.Until(b.t, js, func() bool { return script[bool](b, "!!("+js+")") })
}

// onOrigin opens a page without a script on the program's origin.
func (b *browser) onOrigin(p *proc) {
	b.t.Helper()
	b.do(chromedp.Navigate(p.api() + "/v1/sessions"))
}

// counters of the playground, in the order of its page.
func (b *browser) counters() string {
	b.t.Helper()
	return script[string](b, `['received', 'resumed', 'gaps', 'duplicates', 'out-of-order'].map((n) => byID('count-' + n).textContent).join(' ')`)
}

func (b *browser) playground(p *proc, session, stream string) {
	b.t.Helper()
	b.do(chromedp.Navigate(p.api()+"/?session="+session+"&stream="+stream), chromedp.WaitReady(`[data-testid="connect"]`))
	b.helper()
	b.click("connect")
	b.until("byID('state').textContent == 'live'")
}

// helper makes byID known to a page that was loaded.
func (b *browser) helper() {
	b.t.Helper()
	script[bool](b, `(window.byID = (id) => document.querySelector('[data-testid="' + id + '"]')) && true`)
}

// hurry has timers of the page run out in a quarter of their time.
func (b *browser) hurry() {
	b.t.Helper()
	script[bool](b, `{
		const served = setTimeout
		window.setTimeout = (then, ms, ...args) => served(then, ms / 4, ...args)
	} true`)
}

// click presses the element of an ID.
func (b *browser) click(id string) {
	b.t.Helper()
	b.press(`[data-testid="` + id + `"]`)
}

// press clicks the first element of a selector as soon as it is enabled and nothing covers
// it. It looks and clicks within one script: a page that is redrawn in between would
// move the element away from under a mouse.
func (b *browser) press(selector string) {
	b.t.Helper()
	b.until(fmt.Sprintf(pressJS, selector))
}

const pressJS = `(() => {
	const e = document.querySelector(%q)
	if (!e || e.disabled) return false
	e.scrollIntoView({ block: 'center', behavior: 'instant' })
	const [box] = e.getClientRects()
	if (!box || !e.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2))) return false
	e.click()
	return true
})()`

func (b *browser) reload() {
	b.t.Helper()
	b.do(chromedp.Reload(), chromedp.WaitReady(`[data-testid="connect"]`))
	b.helper()
	b.until("byID('state').textContent == 'live'")
}

func (b *browser) received(n int) {
	b.t.Helper()
	b.until(fmt.Sprintf("byID('count-received').textContent == '%d'", n))
}

func TestPlayground_ReloadRestartAndCut(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--retry=100ms", "--heartbeat=100ms", "--ack-timeout=9s") // its publish button tries once
	b := openBrowser(t)
	b.playground(p, "play", "s")
	p.publish("play", "s", 1, 5)
	b.received(5)

	b.reload()
	p.publish("play", "s", 6, 8)
	b.received(3)
	if got := b.counters(); got != "3 1 0 0 0" {
		t.Errorf("after a reload the counters are %s", got)
	}

	p.kill()
	b.until("byID('state').textContent != 'live'")
	p.start()
	p.publish("play", "s", 9, 12)
	b.received(7)
	if got := b.counters(); got != "7 2 0 0 0" {
		t.Errorf("after a restart the counters are %s", got)
	}

	// A quiet reload: others have written, this stream has not.
	before := b.text("cursor")
	p.publish("play", "other", 1, 5)
	b.until("byID('cursor').textContent != " + strconv.Quote(before))
	b.reload()
	p.publish("play", "s", 13, 13)
	b.received(1)
	if got := b.counters(); got != "1 1 0 0 0" {
		t.Errorf("after a quiet reload the counters are %s", got)
	}

	b.playground(p, "buttons", "s")
	b.click("publish")
	b.received(1)
	b.click("cut")
	b.until("byID('state').textContent == 'cut'")
	p.publish("buttons", "s", 1, 3)
	b.click("resume")
	b.received(4)
	if got := b.counters(); got != "4 1 0 0 0" {
		t.Errorf("the counters are %s", got)
	}
	b.click("auto")
	b.until("Number(byID('count-received').textContent) >= 10")
	b.click("auto")
	if got := b.counters(); !strings.HasSuffix(got, " 1 0 0 0") {
		t.Errorf("after publishing automatically the counters are %s", got)
	}
	b.showsNothing("problem", "at the end")
}

// With access control the page asks for a token, and works with one.
func TestPlayground_Token(t *testing.T) {
	t.Parallel()
	p := startGuarded(t)
	b := openBrowser(t)
	b.do(chromedp.Navigate(p.api()+"/?session=room&stream=main"), chromedp.WaitReady(`[data-testid="connect"]`))
	b.helper()
	b.click("connect")
	b.shows("access-outcome", "A token is needed.")
	use := func(token string) {
		script[bool](b, fmt.Sprintf("byID('token').value = %q; true", token))
	}
	use("nonsense…")
	script[bool](b, "byID('message').focus(); true")
	b.click("connect")
	b.shows("access-outcome", "The token was refused.")
	if !script[bool](b, "document.activeElement == byID('message')") {
		t.Error("a refused connection takes the focus from the message")
	}
	if kept := script[string](b, "byID('token').value"); kept != "nonsense…" {
		t.Errorf("the field of the refused token has %q", kept)
	}
	use(authtest.Of(t, "alice", "*"))
	b.click("resume")
	b.shows("detail", "Create the session")
	b.click("create")
	b.shows("detail", "Session room is created.")
	b.click("resume")
	b.until("byID('state').textContent == 'live'")
	b.click("publish")
	b.received(1)
	b.shows("events", `"total": "9.50"`)
	b.click("copy-publish")
	if command := b.text("curl-publish"); !strings.Contains(command, `-H "Authorization: Bearer $TOKEN"`) {
		t.Errorf("the command is %s", command)
	}

	b.click("cookie-set")
	b.shows("access-outcome", "Signed in")
	b.reload() // which forgets the token
	if token := script[string](b, "byID('token').value"); token != "" {
		t.Errorf("after a reload the token is %q", token)
	}
}

// The page's message about a close is that of the last one.
func TestPlayground_CloseAnsweredByAProxy(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--ack-timeout=9s")
	p.publish("end", "s", 1, 1)
	b := openBrowser(t)
	b.playground(p, "end", "s")
	script[bool](b, faultyJS)
	script[bool](b, "window.faulty = (path, method) => method == 'DELETE' ? signIn() : null; true")
	b.click("close-stream")
	b.click("confirm-no")
	b.until("!document.querySelector('dialog')")
	b.showsNothing("problem", "without a confirmation")
	b.click("close-stream")
	b.click("confirm-yes")
	b.shows("problem", "http_200")
	b.showsNothing("ended", "after an answer of a proxy")
	script[bool](b, "window.faulty = () => null; true")
	b.click("close-stream")
	b.click("confirm-yes")
	b.shows("ended", "Stream closed.")
	b.showsNothing("problem", "after a close")
	script[bool](b, "window.faulty = (path, method) => method == 'DELETE' ? signIn() : null; true")
	b.click("close-session")
	b.click("confirm-yes")
	b.shows("problem", "http_200")
	b.showsNothing("ended", "after a second close that failed")

	// So are those about a message, and about a connection.
	b.playground(p, "end", "t")
	b.click("publish")
	b.shows("published", "Stored as")
	script[bool](b, faultyJS)
	script[bool](b, "window.faulty = (path, method) => method == 'POST' ? new Promise((answer) => { window.answer = answer }) : null; true")
	b.click("publish")
	b.until("window.answer")
	b.showsNothing("published", "before the answer")
	down := `window.faulty = (path) => String(path).includes('/events') ? Promise.resolve(new Response('{"code":"down","detail":"It is down."}', { status: 503 })) : null; true`
	script[bool](b, down)
	b.click("cut")
	b.click("resume")
	b.shows("detail", "No connection: 503: It is down. Trying")
	b.click("auto")
	b.shows("auto-outcome", "No. 1: down; trying again")
	b.click("auto")
	b.until("byID('auto-outcome').textContent == 'No. 1: down'")
}

func TestPlayground_WholeSession(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	p.store(streamPath("all", "a"), `["`+strings.Repeat("x", 20000)+`"]`)
	p.store(streamPath("all", "a"), "["+strings.Repeat("0,", 9000)+"0]") // which would be 27,000 nodes, in each of 500 rows
	p.store(streamPath("all", "b"), "[1]", "Event-Type", "number")
	b := openBrowser(t)
	b.playground(p, "all", "")
	b.received(3)
	b.until("[...byID('events').querySelectorAll('.stream, .type')].map((e) => e.textContent).join(' ') == 'number b message a message a'")
	b.until("byID('events').querySelectorAll('.num').length == 1")
	b.until("byID('events').querySelector('.message pre').textContent == '[ 1 ]'")
}

// A message with a right-to-left override stays within its quotes.
func TestPlayground_RightToLeft(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	p.store(streamPath("rtl", "s"), "[\"\u202eabc\",1]")
	b := openBrowser(t)
	b.playground(p, "rtl", "s")
	b.received(1)
	b.until("byID('events').querySelector('.num')")
	if moved := script[bool](b, `((row) => row.querySelector('.num').getBoundingClientRect().left < row.querySelector('.str').getBoundingClientRect().right)(byID('events'))`); moved {
		t.Errorf("what follows a right-to-left text stands before it")
	}
}

// The commands that the page offers do what its buttons do.
func TestPlayground_CopyAsCurl(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	b := openBrowser(t)
	b.playground(p, "it's", "s")
	script[bool](b, `byID('message').value = '{"text":"it\'s $HOME"}'; true`)
	command := func(id string) *exec.Cmd {
		b.click("copy-" + id)
		text := b.text("curl-" + id)
		return exec.CommandContext(t.Context(), "sh", "-c", "exec "+text) //nolint:gosec // what the page says
	}
	if out, err := command("publish").Output(); err != nil || !strings.Contains(string(out), `"id":"s_`) {
		t.Errorf("publishing is answered %s, %v", out, err)
	}
	b.received(1)
	b.click("cut")
	script[bool](b, `byID('message').value = '["second"]'; true`)
	b.click("publish")
	b.shows("detail", "1 published since the cut")
	read := command("read")
	out := must.Value(read.StdoutPipe())(t)
	must.NoError(t, read.Start())
	first := ""
	for lines := bufio.NewScanner(out); !strings.Contains(first, `["`) && !strings.Contains(first, `"text"`) && lines.Scan(); {
		first = lines.Text()
	}
	if first != `data: ["second"]` {
		t.Errorf("the first event after the cut is %s", first)
	}
	_ = read.Process.Kill()
	_ = read.Wait() // it was killed
}
