package pages

import (
	"strings"
	"testing"
)

func TestPolicy_SameOriginOnly(t *testing.T) {
	for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "base-uri 'none'", "frame-ancestors 'none'"} {
		if !strings.Contains(ContentSecurityPolicy, part) {
			t.Errorf("the policy lacks %q", part)
		}
	}
}
