package janitor

import (
	"flag"
	"os"
	"testing"

	"rejoin/shared/leaktest"
	"rejoin/shared/natstest"
	"rejoin/shared/web/webtest"
)

func TestMain(m *testing.M) {
	// Rare interleavings are what the property tests are about; a given flag wins.
	_ = flag.Set("rapid.checks", "1500") // it exists: rapid is imported
	os.Exit(leaktest.Run(m, append(webtest.IgnoreFasthttp(), natstest.IgnoreLeaks()...)...))
}
