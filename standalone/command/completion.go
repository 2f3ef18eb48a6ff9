package command

import (
	"cmp"
	"context"
	"slices"

	"github.com/alecthomas/kong"

	"rejoin/shared/daemon"
)

// completionCLI holds the arguments of "rejoin completion".
type completionCLI struct {
	daemon.Config
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish."`
}

const completionDescription = `Print a script that completes commands and flags in a shell.

In bash, for this shell, and for all later ones:

  source <(rejoin completion bash)
  rejoin completion bash >~/.local/share/bash-completion/completions/rejoin

In zsh, after compinit, and in fish:

  source <(rejoin completion zsh)
  rejoin completion fish >~/.config/fish/completions/rejoin.fish`

func completion(args []string) daemon.App {
	var cli completionCLI
	return daemon.Command("rejoin completion", completionDescription, &cli, args, func(_ context.Context, env daemon.Env) error {
		script, err := scripts.ReadFile("completion." + cli.Shell)
		if err == nil {
			_, err = env.Stdout.Write(script)
		}
		return err
	})
}

// places returns all of them, the shorter paths first.
func places() (all []place) {
	var root place
	for _, c := range commands() {
		here, path := len(all), c.name
		for i, one := range append([]command{c}, c.subs...) {
			if i > 0 {
				all[here].words = append(all[here].words, word{one.name, one.summary})
				path = c.name + " " + one.name
			}
			all = append(all, placesOf(path, one.app(nil).Model().Node, nil)...)
		}
		root.words = append(root.words, word{c.name, c.summary})
		if c.name == serveName {
			root.flags = all[len(all)-1].flags
		}
	}
	return append([]place{root}, all...)
}

// placesOf returns the places of a command and its subcommands. Flags of a command hold
// after its subcommands as well; those of the default one hold before.
func placesOf(path string, node *kong.Node, inherited []flag) []place {
	here := place{path: path, flags: append(slices.Clone(inherited), flagsOf(node)...)}
	for _, argument := range node.Positional {
		for _, value := range argument.EnumSlice() {
			here.words = append(here.words, word{value, ""})
		}
	}
	var below []place
	for _, child := range node.Children {
		here.words = append(here.words, word{child.Name, child.Help})
		below = append(below, placesOf(path+" "+child.Name, child, here.flags)...)
	}
	if node.DefaultCmd != nil {
		here.flags = append(here.flags, flagsOf(node.DefaultCmd)...)
	}
	return append([]place{here}, below...)
}

func flagsOf(node *kong.Node) (flags []flag) {
	for _, f := range node.Flags {
		if f.Hidden {
			continue
		}
		values := slices.DeleteFunc(f.EnumSlice(), func(v string) bool { return v == "" })
		if f.Tag.Negatable != "" {
			flags = append(flags, flag{"no-" + f.Name, f.Help, false, nil})
		}
		flags = append(flags, flag{f.Name, f.Help, !f.IsBool() && !f.IsCounter(), values})
	}
	slices.SortFunc(flags, func(a, b flag) int { return cmp.Compare(a.name, b.name) })
	return flags
}
