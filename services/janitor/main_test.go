package janitor

import (
	"flag"
	"os"
	"testing"

	"rejoin/services/web/webtest"
	"rejoin/shared/leaktest"
	"rejoin/shared/natstest"
)

func TestMain(m *testing.M) {
	natstest.Child()
	// Rare interleavings are what the property tests are about; a given flag wins.
	_ = flag.Set("rapid.checks", "1500") // it exists: rapid is imported
	os.Exit(leaktest.Run(m, append(webtest.IgnoreFasthttp(), natstest.IgnoreLeaks()...)...))
}
