package daemon

import (
	"os"
	"testing"

	"rejoin/shared/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }
