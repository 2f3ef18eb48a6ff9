package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/daemon"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// logged are the lines of a log, which any goroutine may write.
type logged struct {
	mu    sync.Mutex
	lines []map[string]any
}

func (l *logged) Write(line []byte) (int, error) {
	var fields map[string]any
	if err := json.Unmarshal(line, &fields); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fields)
	return len(line), nil
}

// take returns the lines since it was called last.
func (l *logged) take() []map[string]any {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func addrOf(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}) }

func TestRefusals_FurtherOnesAreSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logged
		r := NewRefusals(out.logger(), nil)
		refuse := func(n int, code Code, client int) (first int) {
			for range n {
				if r.first(code, slog.LevelDebug, "x", addrOf(client)) {
					first++
				}
			}
			return first
		}
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, line := range out.take() {
				clients, _ := line["clients"].(map[string]any)
				got = append(got, fmt.Sprint(line["level"], " ", line["msg"], " ", line["code"], " ", line["count"], " ", clients))
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("logged %q", got)
			}
		}
		if n := refuse(1, CodeGap, 1); n != 1 {
			t.Errorf("%d of one are logged at once", n)
		}
		if n := refuse(3, CodeRateLimited, 1); n != 1 {
			t.Errorf("%d of the first are logged at once", n)
		}
		time.Sleep(9 * time.Second)
		if n := refuse(3, CodeRateLimited, 2) + refuse(1, CodeRateLimited, 3); n != 0 {
			t.Errorf("%d of those that follow are logged at once", n)
		}
		expect()
		time.Sleep(time.Second)
		expect("DEBUG more requests refused rate_limited 6 map[192.0.2.1:2 192.0.2.2:3 192.0.2.3:1]")

		if n := refuse(2, CodeRateLimited, 1); n != 1 {
			t.Errorf("%d are logged at once in the next window", n)
		}
		for i := range 9 {
			refuse(1+i, CodeNotFound, i)
		}
		r.close()
		expect("DEBUG more requests refused not_found 44 map[192.0.2.4:5 192.0.2.5:6 192.0.2.6:7 192.0.2.7:8 192.0.2.8:9 others:9]",
			"DEBUG more requests refused rate_limited 1 map[192.0.2.1:1]")
		if n := refuse(2, CodeRateLimited, 1); n != 2 {
			t.Errorf("%d of two are logged after the end", n)
		}
		time.Sleep(time.Minute)
		expect()
	})
}

func TestRefusals_ManyClientsAndCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logged
		r := NewRefusals(out.logger(), nil)
		long := strings.Repeat("x", 10*refusalCauseBytes)
		const each = 5
		first := 0
		for range each {
			for i := range 50 {
				for _, cause := range []string{fmt.Sprint(i, long), long + fmt.Sprint(i)} {
					if r.first(CodeUnavailable, slog.LevelWarn, cause, netip.AddrFrom4([4]byte{10, 0, byte(i), 1})) {
						first++
					}
				}
			}
		}
		for i := range 250 {
			r.first(CodeGap, slog.LevelDebug, "", addrOf(i))
		}
		r.mu.Lock()
		if first != refusalCauses+1 || len(r.counted) != refusalCauses+2 {
			t.Errorf("%d are logged at once, %d kinds are counted", first, len(r.counted))
		}
		for kind, w := range r.counted {
			if len(kind.cause) > refusalCauseBytes || len(w.clients) > refusalClients {
				t.Errorf("%d bytes of a cause and %d clients are held", len(kind.cause), len(w.clients))
			}
		}
		r.mu.Unlock()
		time.Sleep(refusalsWithin)
		synctest.Wait()
		sums := map[string]float64{}
		for _, line := range out.take() {
			n, _ := line["count"].(float64)
			sums[fmt.Sprint(line["code"])] += n
			clients, _ := line["clients"].(map[string]any)
			of := 0.0
			for n := range maps.Values(clients) {
				n, _ := n.(float64)
				of += n
			}
			if of != n || len(clients) > shownClients+1 {
				t.Errorf("%v requests are of %v", n, clients)
			}
			if cause, _ := line["error"].(string); line["code"] == "unavailable" && !strings.Contains(cause, "xx") {
				t.Errorf("%v has the cause %q", line["msg"], cause)
			}
		}
		want := map[string]float64{"unavailable": float64(each*100 - first), "gap": 249}
		if !reflect.DeepEqual(sums, want) || len(r.counted) > 0 {
			t.Errorf("counted %v, want %v; %d kinds are left", sums, want, len(r.counted))
		}
	})
}

// A timer that fires while the application stops neither logs twice nor outlives it.
func TestRefusals_CloseWhileAWindowEnds(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			var out logged
			r := NewRefusals(out.logger(), nil)
			for range 2 {
				r.first(CodeGap, slog.LevelDebug, "", addrOf(1))
			}
			time.Sleep(refusalsWithin)
			r.close()
			if lines := out.take(); len(lines) != 1 {
				t.Errorf("logged %v", lines)
			}
		})
	}
}

func TestRefusals_AreLoggedWhenTheApplicationStops(t *testing.T) {
	t.Parallel()
	var out logged
	app := NewApp(Config{Service: "test", Log: out.logger()})
	Mount(app, Route{Method: "GET", Path: "/sessions/:session", Handler: func(*fiber.Ctx) error {
		return Wrap(errors.New("no NATS"), CodeUnavailable, "")
	}})
	addr, stop := start(t, app, waittest.Timeout)
	for range 3 {
		expectProblem(t, do(t, addr, http.MethodGet, "/sessions/s", ""), CodeUnavailable)
		expectProblem(t, do(t, addr, http.MethodGet, "/nothing", ""), CodeNotFound)
		do(t, addr, http.MethodGet, "/", "X: a\r\n B: b\r\n") // has no route
	}
	must.NoError(t, stop())
	var got []string
	for _, line := range out.take() {
		clients := must.Value(json.Marshal(line["clients"]))(t)
		got = append(got, fmt.Sprintf("%v %v %v %v %v %v %s", line["level"], line["msg"], line["code"], line["client"], line["session"], line["count"], clients))
		if cause := fmt.Sprint(line["error"]); line["code"] == "unavailable" && cause != "unavailable: no NATS" {
			t.Errorf("%v has the cause %q", line["msg"], cause)
		}
	}
	slices.Sort(got)
	want := []string{
		`DEBUG more requests refused invalid_request <nil> <nil> 2 {"127.0.0.1":2}`,
		`DEBUG more requests refused not_found <nil> <nil> 2 {"127.0.0.1":2}`,
		`DEBUG request refused invalid_request 127.0.0.1 <nil> <nil> null`,
		`DEBUG request refused not_found 127.0.0.1 <nil> <nil> null`,
		`WARN more requests failed unavailable <nil> <nil> 2 {"127.0.0.1":2}`,
		`WARN request failed unavailable 127.0.0.1 s <nil> null`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("logged\n%s", strings.Join(got, "\n"))
	}
}

func TestRefusals_AreLoggedWhenTheListenerFails(t *testing.T) {
	t.Parallel()
	var out logged
	app := NewApp(Config{Service: "test", Log: out.logger()})
	ln := must.Value(Listen(daemon.NewEnv(nil), "127.0.0.1:0", "--addr", Bounds{}))(t)
	served := make(chan error, 1)
	go func() { served <- Serve(t.Context(), app, ln, waittest.Timeout) }()
	for range 2 {
		expectProblem(t, do(t, ln.Addr().String(), http.MethodGet, "/nothing", ""), CodeNotFound)
	}
	must.NoError(t, ln.Close())
	t.Logf("Serve returned %v", <-served)
	if lines := out.take(); len(lines) != 2 || lines[1]["msg"] != "more requests refused" {
		t.Errorf("logged %v", lines)
	}
}

// A refusal for want of a valid token, or for another host or page, is in the log with the
// reason; other refusals are at debug level.
func TestRefusals_Levels(t *testing.T) {
	for code, want := range map[Code]slog.Level{
		CodeUnauthorized: slog.LevelInfo, CodeHostNotAllowed: slog.LevelInfo, CodeOriginNotAllowed: slog.LevelInfo,
		CodeInvalidJSON: slog.LevelDebug, CodeRateLimited: slog.LevelDebug, CodeUnavailable: slog.LevelWarn, CodeInternal: slog.LevelError,
	} {
		if got := levelOf(New(code, "")); got != want {
			t.Errorf("%s: %s", code, got)
		}
	}
}
