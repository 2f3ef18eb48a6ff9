package flagtype

import (
	"fmt"
	"strings"
	"time"
)

// FormatBytes returns a number of bytes, from a MiB on also as FormatSize does.
func FormatBytes(n int64) string {
	if n < 1<<20 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d (%s)", n, FormatSize(n))
}

// FormatSize returns a number of bytes in MiB, GiB or TiB.
func FormatSize(n int64) string {
	switch {
	case n >= 1<<40:
		return fmt.Sprintf("%.1f TiB", float64(n)/(1<<40))
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// FormatDuration returns a duration without units that are zero at its end, such as 1h.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
