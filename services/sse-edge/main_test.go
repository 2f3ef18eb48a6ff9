package edge

import (
	"os"
	"testing"

	"rejoin/services/web/webtest"
	"rejoin/shared/leaktest"
	"rejoin/shared/natstest"
)

func TestMain(m *testing.M) {
	os.Exit(leaktest.Run(m, append(webtest.IgnoreFasthttp(), natstest.IgnoreLeaks()...)...))
}
