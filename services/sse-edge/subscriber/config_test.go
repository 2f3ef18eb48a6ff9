package subscriber

import (
	"testing"
	"time"
)

func TestConfig_ProxyRequestLimit(t *testing.T) {
	for limit, ok := range map[time.Duration]bool{0: true, time.Second: true, time.Minute: true, -1: false, time.Millisecond: false} {
		cfg := Config{
			WindowBytes: 1 << 20, LogReads: 1, Heartbeat: time.Second, Retry: time.Second, MaxAge: time.Minute, WriteTimeout: time.Second,
			MaxConnections: 1, MaxSessionConnections: 1, MaxAddressConnections: 1, ProxyRequestLimit: limit,
		}
		if err := cfg.Validate(); (err == nil) != ok {
			t.Errorf("%s: %v", limit, err)
		}
	}
}
