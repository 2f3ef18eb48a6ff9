package ledger

import (
	"flag"
	"os"
	"testing"
	"time"

	"rejoin/shared/session"
)

func TestMain(m *testing.M) {
	// The property tests look for rare interleavings; a given flag wins.
	_ = flag.Set("rapid.checks", "1500") // it exists: rapid is imported
	os.Exit(m.Run())
}

// always keeps all names for as long.
func always(ttl time.Duration) NameKept { return func(session.Retention) time.Duration { return ttl } }
