package client_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"rejoin/shared/client"
	"rejoin/shared/must"
)

// TestSubscriber_LargestMessage reads the largest message that a log may allow, 31 MiB.
func TestSubscriber_LargestMessage(t *testing.T) {
	message := `"` + strings.Repeat("x", 31<<20-2) + `"`
	for name, cfg := range map[string]client.SubscriberConfig{
		"a stream":            {},
		"a stream with times": {Session: "demo", Stream: "main", Times: true},
		"a session":           {Session: "demo"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				edge := &fakeEdge{closed: true}
				edge.publish(edgeEvent{"main", strings.Repeat("t", 128), message})
				n := 0
				for e, err := range subscriberTo(t, edge, cfg).Events(t.Context()) {
					must.NoError(t, err)
					if n++; string(e.Message) != message {
						t.Errorf("a message of %d bytes, want %d", len(e.Message), len(message))
					}
				}
				if n != 1 {
					t.Errorf("%d events", n)
				}
			})
		})
	}
}
