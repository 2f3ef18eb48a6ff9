package e2e

import (
	"context"
	"os"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"rejoin/shared/must"
)

// looks are those in which each page is checked.
var looks = []struct {
	theme         string
	width, height int64
}{{"light", 1440, 900}, {"dark", 1440, 900}, {"light", 390, 844}, {"dark", 390, 844}}

// look sets the theme that the system asks for, and the size of the window.
func (b *browser) look(theme string, width, height int64) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, height), chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
		})
		return err
	}))
}

// accessible checks the page as it is, in all looks, with axe.
func (b *browser) accessible(what string) {
	b.t.Helper()
	axe := must.Value(os.ReadFile(installed(b.t, "axe").path("axe-core", "axe.min.js")))(b.t)
	script[bool](b, string(axe)+"; true")
	for _, look := range looks {
		b.look(look.theme, look.width, look.height)
		script[bool](b, `window.violations = null
			axe.run().then((found) => { violations = found.violations }, (error) => { violations = [{ id: String(error), nodes: [] }] }); true`)
		b.until("violations")
		found := script[string](b, `violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html + ' ' + n.any.map((a) => a.message).join(' ')).join('\n')).join('\n')`)
		if found != "" {
			b.t.Errorf("axe finds in %s, %s, %d px wide:\n%s", what, look.theme, look.width, found)
		}
		if wider := script[int](b, "document.documentElement.scrollWidth - innerWidth"); wider > 0 {
			b.t.Errorf("%s is %d px wider than its window of %d px", what, wider, look.width)
		}
	}
	b.look("light", 1440, 900)
}

// scrolls makes the scrollable elements scroll.
func (b *browser) scrolls() {
	b.t.Helper()
	script[bool](b, "document.querySelectorAll('.main .scroll, .curl, #metadata').forEach((e) => { e.style.maxHeight = '48px' }); true")
}

func TestPlayground_Accessible(t *testing.T) {
	t.Parallel()
	p := startGuarded(t)
	b := openBrowser(t)
	b.do(chromedp.Navigate(p.api()+"/"), chromedp.WaitReady(`[data-testid="connect"]`))
	b.helper()
	b.accessible("the playground")
	b.look("light", 320, 700) // 1280 px at 400 %
	if cut := script[float64](b, "byID('empty').getBoundingClientRect().right - document.querySelector('.log').getBoundingClientRect().right"); cut > 0 {
		t.Errorf("in a window of 320 px, %v px of the button that clears the view are cut off", cut)
	}
	if covered := script[string](b, `[...document.querySelectorAll('input, select, textarea, button, summary, a')].filter((e) => {
		e.focus()
		const [box] = e.getClientRects()
		return document.activeElement == e && !document.querySelector('.bar').contains(e) && !e.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2))
	}).map((e) => e.id).join(' ')`); covered != "" {
		t.Errorf("in a window of 320 px, the focus is covered on %s", covered)
	}
	b.look("light", 1440, 900)
	b.click("connect")
	b.shows("problem", "401")
	b.click("copy-read")
	b.click("copy-publish")
	b.scrolls()
	b.accessible("the playground with a problem")
	b.look("light", 390, 844)
	script[bool](b, "scrollTo(0, 0); true")
	if !script[bool](b, `((line, bar) => line.top >= bar.bottom || line.bottom <= bar.top)(...['.problem', '.bar'].map((e) => document.querySelector(e).getBoundingClientRect()))`) {
		t.Error("in a window of 390 px, the problem covers the buttons of the connection")
	}
}
