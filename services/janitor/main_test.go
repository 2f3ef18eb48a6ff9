package janitor

import (
	"os"
	"testing"

	"rejoin/shared/leaktest"
	"rejoin/shared/natstest"
	"rejoin/shared/web/webtest"
)

func TestMain(m *testing.M) {
	os.Exit(leaktest.Run(m, append(webtest.IgnoreFasthttp(), natstest.IgnoreLeaks()...)...))
}
