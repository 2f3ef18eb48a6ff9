package daemon

import "github.com/alecthomas/kong"

// HideServiceFlags leaves out of the help what only programs that go on running need.
// It is for [kong.PostBuild], in commands that are not services.
func HideServiceFlags(k *kong.Kong) error {
	for _, f := range k.Model.Flags {
		switch f.Name {
		case "admin-addr", "admin-hosts", "log-bodies", "log-level", "log-format", "memory-budget", "stop-timeout", "pprof":
			f.Hidden = true
		}
	}
	return nil
}
