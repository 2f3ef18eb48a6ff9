package edge

import (
	"testing"

	"go.uber.org/goleak"

	"rejoin/services/web/webtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, webtest.IgnoreFasthttp()...) }
