package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
)

// subscribeJS records the reports of a subscription.
const subscribeJS = `import('/rejoin.js').then(({ subscribe }) => {
	window.got = []; window.gaps = []; window.ends = []; window.states = []
	window.subscription = subscribe({ session: %q, stream: 's' }, {
		onEvent: (event) => { got.push(event.message.params.n) },
		onGap: (gap) => { gaps.push(gap.reason) },
		onClose: (end) => { ends.push(end.reason) },
		onState: (state) => { states.push(state) },
		...%s,
	})
}) && true`

// subscribe subscribes to the stream s of a session, on a page of the origin.
func (b *browser) subscribe(session, options string) {
	b.t.Helper()
	script[bool](b, fmt.Sprintf(subscribeJS, session, options))
	b.until("window.subscription && subscription.state == 'live'")
}

// got waits for messages 1 to n, and fails when there is anything else.
func (b *browser) got(n int) {
	b.t.Helper()
	b.until("got.length >= " + strconv.Itoa(n))
	if got := script[string](b, "got.join(' ') + gaps.join(' ')"); got != upTo(n) {
		b.t.Errorf("the browser got %s", got)
	}
}

func TestJavaScriptClient_RestartWithEventSource(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--retry=100ms", "--ack-timeout=9s")
	b := openBrowser(t)
	b.onOrigin(p)
	b.subscribe("native", "{ storage: 'place' }")
	p.publish("native", "s", 1, 5)
	b.got(5)
	p.kill()
	b.until("subscription.state == 'waiting'")
	p.start()
	p.publish("native", "s", 6, 9)
	b.got(9)
	if transport := script[string](b, "subscription.transport"); transport != "eventsource" {
		t.Errorf("the connections are made with %s", transport)
	}

	b.onOrigin(p) // as a reload
	p.publish("native", "s", 10, 11)
	b.subscribe("native", "{ storage: 'place' }")
	b.until("got.length == 2")
	if got := script[string](b, "got.join(' ')"); got != "10 11" {
		t.Errorf("after a reload the browser got %s", got)
	}
	p.close("/v1/sessions/native/streams/s")
	b.until("ends.join() == 'closed'")

	script[bool](b, fmt.Sprintf(subscribeJS, "native", "{ storage: 'place' }"))
	b.until("ends.join() == 'closed' && got.length == 0") // now by the 204 that EventSource takes for an error
}

// An EventSource cannot be paused: closing it bounds the events that arrive while onEvent
// is slow, and they arrive again when there is room.
func TestJavaScriptClient_SlowOnEventBoundsMemory(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--retry=100ms", "--ack-timeout=9s")
	b := openBrowser(t)
	b.onOrigin(p)
	b.subscribe("slow", `{ onEvent: async (event) => { got.push(event.message.params.n); await window.gate } }`)
	script[bool](b, "window.gate = new Promise((open) => { window.open = open }); true")
	const messages = 12
	for n := 1; n <= messages; n++ {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","method":"count","params":{"n":%d,"padding":%q}}`, n, strings.Repeat("x", 600<<10))
		do(t, http.MethodPost, p.api()+streamPath("slow", "s"), body, "Content-Type", "application/json").got(t, http.StatusCreated)
	}
	// A connection is listed once it has ended.
	b.until("performance.getEntriesByType('resource').filter((entry) => entry.name.endsWith('/events')).length >= 1")
	b.got(1)
	script[bool](b, "window.open(); true")
	b.got(messages)
}

func TestJavaScriptClient_ResumesWhereEventSourceGivesUp(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--retry=100ms")
	var away atomic.Bool
	g := newHTTPProxy(t, p.api(), func(*http.Response) error {
		if away.Load() {
			return errors.New("the edge is away")
		}
		return nil
	})
	b := openBrowser(t)
	b.do(chromedp.Navigate(g.URL + "/v1/sessions"))
	b.hurry() // where EventSource has given up, three attempts take 12 s
	b.subscribe("revival", "{ maxDelay: 100 }")
	p.publish("revival", "s", 1, 3)
	b.got(3)
	away.Store(true)
	g.CloseClientConnections()
	b.until("subscription.transport == 'fetch' && states.filter((state) => state == 'connecting').length >= 3")
	p.publish("revival", "s", 4, 6)
	away.Store(false)
	b.until("subscription.state == 'live'")
	p.publish("revival", "s", 7, 8)
	b.got(8)
	p.kill()
	p.start()
	p.publish("revival", "s", 9, 9)
	b.got(9)
}
