package e2e

import (
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"rejoin/shared/waittest"
)

// from returns a client whose connections come from an address, and which keeps them.
func from(addr net.IP) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: addr}}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 16, TLSClientConfig: trusting(), ForceAttemptHTTP2: true}, Timeout: waittest.Timeout}
}

// M1: sessions with as much metadata as each may have, created from many addresses.
func TestAttackSessionMetadata(t *testing.T) {
	const addresses, atOnce, each = 10, 4, 200 // twice of what there is room for
	p := startProc(t, "--ack-timeout=30s")
	start := p.memory("VmRSS")
	body := `{"metadata":{"x":"` + strings.Repeat("x", 16<<10-8) + `"}}`
	var mu sync.Mutex
	answers := map[int]int{}
	p.costs(func() {
		var all sync.WaitGroup
		for i := range addresses {
			attacker := from(net.IPv4(127, 0, 1, byte(i+1)))
			t.Cleanup(attacker.CloseIdleConnections)
			for range atOnce {
				all.Go(func() {
					for range each / atOnce {
						req, err := newRequest(http.MethodPost, p.api()+"/v1/sessions", body, "Content-Type", jsonType)
						var a answer
						if err == nil {
							a, err = trySend(attacker, req)
						}
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						answers[a.status]++
						mu.Unlock()
					}
				})
			}
		}
		all.Wait()
	})
	for _, status := range slices.Sorted(maps.Keys(answers)) {
		if status != http.StatusCreated && status != http.StatusTooManyRequests {
			t.Errorf("attackers are answered %d, %d times", status, answers[status])
		}
	}
	if opened := answers[http.StatusCreated]; opened == 0 || opened > 1024 { // --max-metadata-bytes of 16 KiB each
		t.Errorf("%d sessions are opened", opened)
	}
	if full := p.metric("rejoin_ingest_sessions_ratio"); full > 1 {
		t.Errorf("%g of what sessions may take is taken", full)
	}
	p.create(`{"session":"another"}`) // without metadata, of which no more is to be had
	p.publish("another", "s", 1, 1)

	p.stop()
	p.start()
	p.healthy("after", nil)
	above := p.memory("VmHWM") - start
	t.Logf("ATTACK %-30s %4d MiB above the start at most, after a restart; %d of %d sessions are opened", t.Name(), above>>20, answers[http.StatusCreated], addresses*each)
	if above > mostAbove*memoryFactor {
		t.Errorf("after a restart it takes %d MiB more", above>>20)
	}
}
