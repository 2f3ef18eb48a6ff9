package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

const variablePrefix = "REJOIN_"

// Variables returns the names of the environment variables that set the program's flags.
func (a App) Variables() (names []string) {
	_ = kong.Visit(a.Model(), func(node kong.Visitable, next kong.Next) error { // no visit has an error
		if f, ok := node.(*kong.Flag); ok {
			names = append(names, f.Tag.Envs...)
		}
		return next(nil)
	})
	return names
}

// unknownVariables calls report with each variable of the environment that looks like a setting and
// is not one, and with the variable that was perhaps meant, or "".
func (a App) unknownVariables(report func(name, meant string)) {
	known := append(a.Variables(), a.OtherVariables...)
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		// An empty one sets nothing, as compose files leave it.
		if !strings.HasPrefix(name, variablePrefix) || value == "" || slices.Contains(known, name) {
			continue
		}
		meant := ""
		if i := slices.IndexFunc(known, func(other string) bool { return IsTypo(name, other) }); i >= 0 {
			meant = known[i]
		}
		report(name, meant)
	}
}

// warnOfVariables logs the unknown variables: a misspelt one would silently have no effect.
func (a App) warnOfVariables(log *slog.Logger) {
	a.unknownVariables(func(name, meant string) {
		attrs := []any{"name", name}
		if meant != "" {
			attrs = append(attrs, "did_you_mean", meant)
		}
		log.Warn("unknown environment variable, ignored", attrs...)
	})
}

// printVariables prints the unknown variables, which are no problem that keeps the program from
// starting.
func (a App) printVariables() {
	a.unknownVariables(func(name, meant string) {
		if meant != "" {
			meant = "; did you mean " + meant + "?"
		}
		_, _ = fmt.Fprintf(a.Stdout, "unknown environment variable %s, ignored%s\n", name, meant) // nowhere left to report to
	})
}

// IsTypo reports whether two names differ in one place: in a letter or two.
func IsTypo(a, b string) bool {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	const letters = 2
	return max(len(a), len(b)) <= letters
}
