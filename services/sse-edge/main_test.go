package edge

import (
	"testing"

	"go.uber.org/goleak"

	"rejoin/services/web/webtest"
	"rejoin/shared/natstest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, append(webtest.IgnoreFasthttp(), natstest.IgnoreLeaks()...)...)
}
