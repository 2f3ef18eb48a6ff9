// Command credentials makes the keys with which the services, and publishers and operators
// outside, identify themselves to NATS, below a folder, unless they are there. The key of the clients' tokens, in
// REJOIN_JWT_SECRET or REJOIN_JWT_KEY, it writes to files for the services that need it.
package main

import (
	"errors"
	"fmt"
	"os"

	"rejoin/deploy/credentials"
)

func main() {
	if len(os.Args) != 2 || os.Args[1] == "" || os.Args[1][0] == '-' {
		fmt.Fprintln(os.Stderr, "usage: credentials FOLDER")
		os.Exit(2)
	}
	dir := os.Args[1]
	if err := errors.Join(
		credentials.Make(dir),
		credentials.Share(dir, credentials.SecretFile, os.Getenv("REJOIN_JWT_SECRET")),
		credentials.Share(dir, credentials.PublicFile, os.Getenv("REJOIN_JWT_KEY")),
	); err != nil {
		fmt.Fprintln(os.Stderr, "credentials:", err)
		os.Exit(1)
	}
}
