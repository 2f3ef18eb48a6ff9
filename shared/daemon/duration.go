package daemon

import (
	"strconv"
	"strings"
	"time"
)

// ParseDuration is [time.ParseDuration], which also reads whole days: "7d".
func ParseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		const most = 100 * 365 // of what a duration holds
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n <= most {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	return time.ParseDuration(text)
}
