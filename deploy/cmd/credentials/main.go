// Command credentials makes the keys with which the services, and publishers and operators
// outside, identify themselves to NATS, below a folder, unless they are there. The key of the clients' tokens, in
// REJOIN_JWT_SECRET or REJOIN_JWT_KEY, it writes to files for the services that need it.
// With --cluster it makes the certificates of a cluster, too.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"rejoin/deploy/credentials"
)

func main() {
	cluster := flag.Bool("cluster", false, "make the certificates of a cluster, too")
	flag.Parse()
	if flag.NArg() != 1 || flag.Arg(0) == "" {
		fmt.Fprintln(os.Stderr, "usage: credentials [--cluster] FOLDER")
		os.Exit(2)
	}
	dir := flag.Arg(0)
	var certificates error
	if *cluster {
		certificates = credentials.MakeCertificates(dir)
	}
	if err := errors.Join(
		certificates,
		credentials.Make(dir),
		credentials.Share(dir, credentials.SecretFile, os.Getenv("REJOIN_JWT_SECRET")),
		credentials.Share(dir, credentials.PublicFile, os.Getenv("REJOIN_JWT_KEY")),
	); err != nil {
		fmt.Fprintln(os.Stderr, "credentials:", err)
		os.Exit(1)
	}
}
