package daemon

import (
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

const variablePrefix = "REJOIN_"

// Variables returns the names of the environment variables that set the program's flags.
func (a App) Variables() ([]string, error) {
	model, err := a.Model()
	if err != nil {
		return nil, err
	}
	var names []string
	err = kong.Visit(model, func(node kong.Visitable, next kong.Next) error {
		if f, ok := node.(*kong.Flag); ok {
			names = append(names, f.Tag.Envs...)
		}
		return next(nil)
	})
	return names, err
}

// warnOfVariables logs each variable of the environment that looks like a setting and is none:
// a misspelt one would be without effect and without a word.
func (a App) warnOfVariables(log *slog.Logger) error {
	known, err := a.Variables()
	if err != nil {
		return err
	}
	known = append(known, a.OtherVariables...)
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		// An empty one sets nothing, as compose files leave it.
		if !strings.HasPrefix(name, variablePrefix) || value == "" || slices.Contains(known, name) {
			continue
		}
		attrs := []any{"name", name}
		if i := slices.IndexFunc(known, func(other string) bool { return IsTypo(name, other) }); i >= 0 {
			attrs = append(attrs, "did_you_mean", known[i])
		}
		log.Warn("unknown environment variable, ignored", attrs...)
	}
	return nil
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
