package command

import (
	"embed"
	"strings"
)

// place is a command or subcommand, and the words and flags that can follow it.
type place struct {
	path  string // the commands so far: "", "log", "log set"
	words []word
	flags []flag
}

// word is a command, a flag, or a value.
type word struct{ text, help string }

type flag struct {
	name, help string
	takesValue bool
	values     []string // empty: any
}

// completeName is the command that the scripts of all shells call.
const completeName = "__complete"

// complete returns the completions of a command line's last word, a line for each, with its help after a tab.
// bash splits words at "=".
func complete(places []place, line []string) string {
	if len(line) == 0 {
		return ""
	}
	before, last := line[:len(line)-1], line[len(line)-1]
	if last == "=" {
		last = ""
	} else if n := len(before); n > 0 && before[n-1] == "=" {
		before = before[:n-1]
	}
	here, previous := places[0], ""
	for _, previous = range before {
		for _, p := range places[1:] {
			if p.path == strings.TrimPrefix(here.path+" "+previous, " ") {
				here = p
			}
		}
	}
	found := here.words
	if strings.HasPrefix(last, "-") {
		found = nil
	}
	for _, f := range here.flags {
		name := "--" + f.name
		switch {
		case f.takesValue && name == previous:
			found = values("", f)
		case f.takesValue && strings.HasPrefix(last, name+"="):
			found = values(name+"=", f)
		case !strings.HasPrefix(last, "-"):
		case f.takesValue:
			found = append(found, word{name + "=", f.help})
		default:
			found = append(found, word{name, f.help})
		}
	}
	var b strings.Builder
	for _, w := range found {
		if strings.HasPrefix(w.text, last) {
			b.WriteString(w.text + "\t" + w.help + "\n")
		}
	}
	return b.String()
}

func values(prefix string, f flag) (words []word) {
	for _, v := range f.values {
		words = append(words, word{prefix + v, ""})
	}
	return words
}

// scripts complete in each shell with the lines of [complete], or with files when there are none.
//
//go:embed completion.bash completion.zsh completion.fish
var scripts embed.FS
