package web

import (
	"os"
	"testing"

	"rejoin/services/web/webtest"
	"rejoin/shared/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, webtest.IgnoreFasthttp()...)) }
