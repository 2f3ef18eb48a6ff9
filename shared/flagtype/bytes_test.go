package flagtype

import (
	"math"
	"testing"
)

func TestBytes_UnmarshalText(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "-1": -1, "268435456": 1 << 28, "7b": 7, "64MB": 64e6, "1GB": 1e9, "256KiB": 1 << 18, "2 mib": 2 << 20, "1tb": 1e12, "8TiB": 8 << 40, "3kb": 3000, "1GiB": 1 << 30,
		"9223372036854775807": math.MaxInt64,
	} {
		got := Bytes(5)
		if err := got.UnmarshalText([]byte(text)); got != want || err != nil {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "MB", "1.5GB", "1M", "1K", "1iB", "1BB", "-1MB", "1 0", "0x10", "8388608TiB", "9223372036854775808", "much", "1MBx"} {
		got := Bytes(5)
		if err := got.UnmarshalText([]byte(text)); err == nil || got != 5 {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestFormatBytes_Units(t *testing.T) {
	for n, want := range map[int64]string{
		-1: "-1", 1<<20 - 1: "1048575", 1 << 20: "1048576 (1.0 MiB)", 3 << 29: "1610612736 (1.5 GiB)", 1e14: "100000000000000 (90.9 TiB)",
	} {
		if got := FormatBytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
