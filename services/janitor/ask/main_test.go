package ask

import (
	"os"
	"testing"

	"rejoin/shared/leaktest"
	"rejoin/shared/natstest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }
