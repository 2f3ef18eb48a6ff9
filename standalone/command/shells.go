package command

import (
	"fmt"
	"strings"
)

// place is where a command line can stand, and what can follow there.
type place struct {
	path  string // the commands so far: "", "log", "log set"
	words []word
	flags []flag
}

// word is a command, or a value of an argument that has few.
type word struct{ text, help string }

type flag struct {
	name, help string
	takesValue bool
	values     []string // empty: any
}

// steps are the lines of a shell's case that follow the commands: each is what was
// found so far, a space, and the next word.
func steps(places []place) []string {
	var all []string
	for _, p := range places[1:] {
		if !strings.Contains(p.path, " ") {
			p.path = " " + p.path // nothing was found before
		}
		all = append(all, "'"+p.path+"'")
	}
	return all
}

// quoted quotes text for a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// bashScript completes in bash, which splits words at "=".
func bashScript(places []place) string {
	var b strings.Builder
	b.WriteString(`_rejoin() {
	local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} at= word words=
	COMPREPLY=()
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		case "$at $word" in
`)
	fmt.Fprintf(&b, "\t\t%s) at=\"${at:+$at }$word\" ;;\n", strings.Join(steps(places), "|"))
	b.WriteString(`		esac
	done
	if [[ $current == = ]]; then
		current=
	elif [[ $before == = ]]; then
		before=${COMP_WORDS[COMP_CWORD-2]}
	fi
	case "$at $before" in
`)
	for _, p := range places {
		for _, f := range p.flags {
			if len(f.values) > 0 {
				fmt.Fprintf(&b, "\t'%s --%s') COMPREPLY=($(compgen -W '%s' -- \"$current\")); return ;;\n", p.path, f.name, strings.Join(f.values, " "))
			}
		}
	}
	b.WriteString("\tesac\n\tcase $at in\n")
	for _, p := range places {
		var words []string
		for _, w := range p.words {
			words = append(words, w.text)
		}
		for _, f := range p.flags {
			if f.takesValue {
				words = append(words, "--"+f.name+"=")
			} else {
				words = append(words, "--"+f.name)
			}
		}
		fmt.Fprintf(&b, "\t'%s') words='%s' ;;\n", p.path, strings.Join(words, " "))
	}
	b.WriteString(`	esac
	COMPREPLY=($(compgen -W "$words" -- "$current"))
	if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
		compopt -o nospace
	fi
}
complete -o default -F _rejoin rejoin
`)
	return b.String()
}

// zshScript completes in zsh. In what it lists, a colon ends the word.
func zshScript(places []place) string {
	var b strings.Builder
	b.WriteString(`#compdef rejoin
_rejoin() {
	local at= word
	local -a commands flags values
	for word in "${(@)words[2,CURRENT-1]}"; do
		case "$at $word" in
`)
	fmt.Fprintf(&b, "\t\t(%s)) at=\"${at:+$at }$word\" ;;\n", strings.Join(steps(places), "|"))
	b.WriteString("\t\tesac\n\tdone\n\tcase $at in\n")
	for _, p := range places {
		fmt.Fprintf(&b, "\t('%s')\n\t\tcommands=(%s)\n", p.path, zshList(p.words))
		var switches, options []word
		for _, f := range p.flags {
			if f.takesValue {
				options = append(options, word{"--" + f.name + "=", f.help})
			} else {
				switches = append(switches, word{"--" + f.name, f.help})
			}
		}
		fmt.Fprintf(&b, "\t\tflags=(%s)\n\t\tvalues=(%s) ;;\n", zshList(switches), zshList(options))
	}
	b.WriteString("\tesac\n\tcase \"$at ${words[CURRENT]%%=*}\" in\n")
	for _, p := range places {
		for _, f := range p.flags {
			if len(f.values) > 0 {
				fmt.Fprintf(&b, "\t('%s --%s') [[ -prefix *= ]] && { compset -P '*='; compadd -- %s; return; } ;;\n", p.path, f.name, strings.Join(f.values, " "))
			}
		}
	}
	b.WriteString(`	esac
	if compset -P '--*='; then
		_files
		return
	fi
	_describe -t commands command commands
	if [[ $words[CURRENT] == -* ]]; then
		_describe -o -t flags flag flags -- values -S ''
	fi
}
if [[ $funcstack[1] == _rejoin ]]; then
	_rejoin "$@"
else
	compdef _rejoin rejoin
fi
`)
	return b.String()
}

func zshList(words []word) string {
	var all []string
	for _, w := range words {
		text := strings.ReplaceAll(w.text, ":", `\:`)
		if w.help != "" {
			text += ":" + strings.ReplaceAll(w.help, ":", `\:`)
		}
		all = append(all, quoted(text))
	}
	return strings.Join(all, " ")
}

// fishScript completes in fish, which shows help beside each word.
func fishScript(places []place) string {
	var b strings.Builder
	b.WriteString(`function __rejoin_at
	set -l at
	for word in (commandline -opc)[2..]
		switch "$at $word"
`)
	fmt.Fprintf(&b, "\t\t\tcase %s\n", strings.Join(steps(places), " "))
	b.WriteString(`				set -a at $word
		end
	end
	test "$at" = "$argv"
end
`)
	for _, p := range places {
		at := fmt.Sprintf("complete -c rejoin -n '__rejoin_at %s'", p.path)
		for _, w := range p.words {
			fmt.Fprintf(&b, "%s -f -a %s -d %s\n", at, w.text, fishQuoted(w.help))
		}
		for _, f := range p.flags {
			value := ""
			if f.takesValue {
				value = " -r"
			}
			if len(f.values) > 0 {
				value = " -x -a '" + strings.Join(f.values, " ") + "'"
			}
			fmt.Fprintf(&b, "%s -l %s%s -d %s\n", at, f.name, value, fishQuoted(f.help))
		}
	}
	return b.String()
}

// fishQuoted quotes text for fish, where a backslash escapes in quotes.
func fishQuoted(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}
