// Package flagtype holds the types of flags that several programs have: durations and sizes.
package flagtype

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Duration is a duration, or -1 for no limit. It is in nanoseconds.
type Duration time.Duration

// UnmarshalText reads the syntax of [ParseDuration], and -1.
func (d *Duration) UnmarshalText(text []byte) error {
	if string(text) == "-1" {
		*d = -1
		return nil
	}
	parsed, err := ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration (examples: 90m, 24h, 7d; -1 for unlimited)", text)
	}
	*d = Duration(parsed)
	return nil
}

// ParseDuration is [time.ParseDuration], which also reads whole days: "7d".
func ParseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		const most = 100 * 365 // a duration holds more
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n <= most {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	return time.ParseDuration(text)
}
