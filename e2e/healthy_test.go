package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"rejoin/shared/waittest"
)

// healthyAPI has the address of the program when this test binary runs as a healthy client.
const healthyAPI = "REJOIN_TEST_HEALTHY_API"

// healthy runs a client in a process of its own, so that an attacker in this one takes none of
// its time. It publishes 200 events to a session and more until over ends, and reads each. healthy
// returns the 99th percentile of the time that both took. The client comes from an address of its
// own. Anything but a healthy answer fails the test.
func (p *proc) healthy(session string, over io.Reader) time.Duration {
	cmd := exec.CommandContext(waittest.Context(p.t), os.Args[0], session)
	cmd.Env = append(os.Environ(), healthyAPI+"="+p.api())
	var out, errors bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = over, &out, &errors
	if err := cmd.Run(); err != nil {
		p.t.Errorf("a healthy client: %v\n%s", err, errors.String())
		return 0
	}
	took, err := time.ParseDuration(out.String())
	if err != nil {
		p.t.Error(err)
	}
	return took
}

// runHealthy is the client of healthy. It ends when 200 exchanges are done and stdin is at its end.
func runHealthy(api, session string) (time.Duration, error) {
	own := from(net.IPv4(127, 0, 0, 9))
	try := func(method, url, body string, status int, has string) error {
		for began := time.Now(); ; {
			req, err := newRequest(method, url, body, "Content-Type", jsonType, "Accept", jsonType)
			if err != nil {
				return err
			}
			a, err := trySend(own, req)
			// The log may take longer than --ack-timeout: nothing was stored.
			if err == nil && a.status == http.StatusServiceUnavailable && time.Since(began) < waittest.Timeout {
				continue
			}
			if err == nil && (a.status != status || strings.Count(a.body, has) != 1) {
				err = fmt.Errorf("%s is answered %d %.300s", method, a.status, a.body)
			}
			return err
		}
	}
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	var took []time.Duration
	for done := false; !done || len(took) < 200; {
		began := time.Now()
		if err := try(http.MethodPost, api+streamPath(session, "s"), numbered(len(took)), http.StatusCreated, `"id"`); err != nil {
			return 0, err
		}
		if err := try(http.MethodGet, api+streamPath(session, "s")+"?wait=30&limit=1", "", http.StatusOK, `"method":"count"`); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
		select {
		case <-over:
			done = true
		default:
		}
	}
	slices.Sort(took)
	return took[len(took)*99/100], nil
}
