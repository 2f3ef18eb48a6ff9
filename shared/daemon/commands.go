package daemon

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// HideServiceFlags leaves out of the help what only programs that go on running need, and
// removes --config, whose file is theirs. It is for [kong.PostBuild], in commands that are not
// services.
func HideServiceFlags(k *kong.Kong) error {
	k.Model.Flags = slices.DeleteFunc(k.Model.Flags, func(f *kong.Flag) bool { return f.Name == "config" })
	for _, f := range k.Model.Flags {
		switch f.Name {
		case "admin-addr", "admin-hosts", "log-bodies", "log-level", "log-format", "memory-budget", "stop-timeout", "pprof":
			f.Hidden = true
		}
	}
	return nil
}

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
