// Command credentials makes the keys with which the services identify themselves to
// NATS, below a folder. Those that are there are kept.
package main

import (
	"fmt"
	"os"

	"rejoin/deploy/credentials"
)

func main() {
	if len(os.Args) != 2 || os.Args[1] == "" || os.Args[1][0] == '-' {
		fmt.Fprintln(os.Stderr, "usage: credentials FOLDER")
		os.Exit(2)
	}
	if err := credentials.Make(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "credentials:", err)
		os.Exit(1)
	}
}
