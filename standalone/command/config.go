package command

import (
	"context"
	"slices"

	"github.com/alecthomas/kong"

	"rejoin/shared/daemon"
)

// configCLI holds the flags of "rejoin config".
type configCLI struct {
	daemon.Config
	Check struct{} `cmd:"" help:"Check the settings of rejoin serve without starting it."`
}

const configDescription = `Check the settings of rejoin serve, in the file of --config and in the environment.

  rejoin config check --config=/etc/rejoin.yaml && systemctl restart rejoin

It prints "configuration is valid", or each problem in a line; then the exit code is 1.`

// config is "rejoin config": its one subcommand is a way to run serve.
func config(args []string) daemon.App {
	if len(args) > 0 && args[0] == "check" {
		a := serve(append([]string{"config"}, args...))
		a.Name, a.Usage, a.Description = "rejoin config", "rejoin config check", configDescription
		return a
	}
	onlyConfig := func(k *kong.Kong) error {
		k.Model.Flags = slices.DeleteFunc(k.Model.Flags, func(f *kong.Flag) bool { return len(f.Envs) > 0 && f.Name != "config" })
		return nil
	}
	return daemon.App{
		Name: "rejoin config", Description: configDescription,
		CLI: &configCLI{}, Options: []kong.Option{kong.PostBuild(onlyConfig)}, Args: append([]string{}, args...),
		Run: func(context.Context, daemon.Env) error { return nil },
	}
}
