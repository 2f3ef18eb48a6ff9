package ledger

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	// Rare interleavings are what the property tests are about; a given flag wins.
	_ = flag.Set("rapid.checks", "1500") // it exists: rapid is imported
	os.Exit(m.Run())
}
