package pages

import (
	"strings"
	"testing"
)

func TestTheSharedStyleAndPolicyFetchNothingFromElsewhere(t *testing.T) {
	for _, bad := range []string{"@import", "url("} {
		if strings.Contains(string(Style), bad) {
			t.Errorf("base.css contains %q", bad)
		}
	}
	for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "base-uri 'none'", "frame-ancestors 'none'"} {
		if !strings.Contains(ContentSecurityPolicy, part) {
			t.Errorf("the policy lacks %q", part)
		}
	}
}
