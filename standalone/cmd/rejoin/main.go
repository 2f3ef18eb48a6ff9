// Command rejoin is all of Rejoin in one process, with a NATS server inside, and the
// commands that use a Rejoin that runs: "rejoin --help" lists them.
package main

import (
	"os"

	"rejoin/standalone/command"
)

func main() { os.Exit(command.Main(os.Args[1:])) }
