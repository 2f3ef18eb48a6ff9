package web

import (
	"os"
	"testing"

	"rejoin/shared/leaktest"
	"rejoin/shared/web/webtest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, webtest.IgnoreFasthttp()...)) }
