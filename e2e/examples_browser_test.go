package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
)

// pages serves the example pages on an origin of their own.
func pages(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir("../examples/browser")))
	mux.HandleFunc("/frames", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		page := `"tabs.html?` + r.URL.RawQuery + `"`
		_, _ = w.Write([]byte("<!doctype html><iframe src=" + page + "></iframe><iframe src=" + page + "></iframe>")) // the browser may have disconnected
	})
	return serve(t, mux.ServeHTTP)
}

const itemsJS = "[...document.querySelectorAll('li')].map((item) => item.textContent.replace(/.*\"n\":([0-9]+).*/, '$1')).join(' ')"

// lists waits until a page lists messages by their numbers.
func (b *browser) lists(want string) {
	b.t.Helper()
	b.until(itemsJS + " == '" + want + "'")
}

func (b *browser) says(want string) {
	b.t.Helper()
	b.until("document.getElementById('state').textContent == '" + want + "'")
}

// unreachable is the state on the pages while they could not connect yet.
func unreachable(pages *httptest.Server) string {
	return "waiting: Rejoin is down, or was started without --cors-origins=" + pages.URL
}

// A page whose origin is not allowed names the flag.
func TestExamples_PageOfAnotherOrigin(t *testing.T) {
	t.Parallel()
	s := pages(t)
	p := startProc(t)
	for _, page := range []string{"eventsource.html", "client.html", "tabs.html"} {
		b := openBrowser(t)
		b.do(chromedp.Navigate(s.URL + "/" + page + "?base=" + url.QueryEscape(p.api())))
		b.says(unreachable(s))
	}
}

// A page continues after a restart and a reload, reports missing events, and ends with its stream.
func TestExamples_Pages(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"eventsource.html", "client.html"} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			s := pages(t)
			p := startProc(t, "--retry=100ms", "--ack-timeout=4s", "--cors-origins="+s.URL)
			b := openBrowser(t)
			load := func() {
				b.do(chromedp.Navigate(s.URL + "/" + page + "?base=" + url.QueryEscape(p.api())))
			}
			p.publish("demo", "main", 1, 2)
			load()
			b.lists("1 2")
			b.says("live")
			p.kill()
			b.says("waiting")
			load()
			b.lists("1 2")
			b.says(unreachable(s))
			p.start()
			p.publish("demo", "main", 3, 4)
			b.lists("1 2 3 4")
			load()
			p.publish("demo", "main", 5, 5)
			b.lists("1 2 3 4 5")

			b.do(chromedp.Navigate(s.URL + "/")) // a page without a script, or the other one would keep its own place
			script[bool](b, `Object.keys(localStorage).forEach((key) => localStorage.setItem(key, JSON.stringify({ place: 'main_0000000_1', messages: ['old'] }))), true`)
			load()
			b.lists("events are missing: unknown 1 2 3 4 5")
			p.close("/v1/sessions/demo/streams/main")
			b.says("the end")
			load()
			b.says("the end")
			b.lists("1 2 3 4 5")
		})
	}
}

// An event without data is no message.
func TestExamples_PageWithEmptyMessage(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"eventsource.html", "client.html"} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			b := openBrowser(t)
			b.do(chromedp.Navigate(pages(t).URL + "/" + page + "?base=" + url.QueryEscape(emptyMessages(t).api())))
			b.says("the end")
			b.lists("1")
		})
	}
}

// A page that asks why its EventSource gave up shows the last messages before it reports the end.
func TestExamples_PageClosedWithMessagesLeft(t *testing.T) {
	t.Parallel()
	var streams atomic.Int32
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		switch {
		case r.Header.Get("Accept") != "text/event-stream":
			_, _ = io.WriteString(w, `{"events":[{"id":"main_abcdefg_2","message":`+numbered(1)+`}],"cursor":"main_abcdefg_2","gaps":[],"closed":true}`)
		case streams.Add(1) == 1:
			w.WriteHeader(http.StatusBadGateway)
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "id: main_abcdefg_2\ndata: "+numbered(1)+"\n\nevent: close\ndata: {}\n\n")
		}
	})
	b := openBrowser(t)
	b.do(chromedp.Navigate(pages(t).URL + "/eventsource.html?base=" + url.QueryEscape(s.URL)))
	b.says("the end")
	if got := script[string](b, itemsJS); got != "1" {
		t.Errorf("it shows %q", got)
	}
}

// All tabs show everything over one connection, also when the one that had it is closed, and after a reload.
func TestExamples_ManyTabs(t *testing.T) {
	t.Parallel()
	s := pages(t)
	p := startProc(t, "--retry=100ms", "--ack-timeout=9s", "--cors-origins="+s.URL)
	b := openBrowser(t)
	p.publish("demo", "main", 1, 1)
	b.do(chromedp.Navigate(s.URL + "/frames?base=" + url.QueryEscape(p.api())))
	const tabs = "[...document.querySelectorAll('iframe')].map((frame) => frame.contentDocument)"
	all := func(numbers string) {
		t.Helper()
		b.until(tabs + ".every((tab) => [...tab.querySelectorAll('li')].map((item) => JSON.parse(item.textContent).params.n).join(' ') == '" + numbers + "')")
	}
	all("1")
	b.until(tabs + ".map((tab) => tab.getElementById('state').textContent).sort().join(' ') == 'following listening'")
	p.publish("demo", "main", 2, 2)
	all("1 2")
	if n := p.metric("rejoin_edge_connections"); n != 1 {
		t.Errorf("the edge has %g connections", n)
	}
	script[bool](b, "[...document.querySelectorAll('iframe')].find((frame) => frame.contentDocument.getElementById('state').textContent == 'following').remove(), true")
	b.until(tabs + "[0].getElementById('state').textContent == 'following'")
	p.publish("demo", "main", 3, 3)
	all("1 2 3")
	p.close("/v1/sessions/demo/streams/main")
	b.until(tabs + "[0].getElementById('state').textContent == 'the end'")
	b.do(chromedp.Reload())
	b.until(tabs + ".every((tab) => tab.getElementById('state')?.textContent == 'the end')")
	all("1 2 3")
}
