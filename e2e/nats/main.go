// Command nats stands in for the NATS command line where the tests run examples: it works
// as nats request with the flags --raw, --no-templates, --timeout and -H.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nats: error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 || args[0] != "request" {
		return errors.New("it only knows request")
	}
	flags := flag.NewFlagSet("request", flag.ContinueOnError)
	raw := flags.Bool("raw", false, "print nothing but the answer")
	plain := flags.Bool("no-templates", false, "take the body as it is")
	timeout := flags.Duration("timeout", 5*time.Second, "how long to wait")
	msg := nats.NewMsg("")
	flags.Func("H", "a header, NAME:VALUE", func(s string) error {
		name, value, ok := strings.Cut(s, ":")
		if !ok {
			return errors.New("a header has a name and a value")
		}
		msg.Header.Add(name, strings.TrimSpace(value))
		return nil
	})
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() != 2 || !*raw || !*plain || !slices.Contains(args, "--") { // or a body that begins with - is a flag
		return errors.New("it wants --raw, --no-templates, --, a subject and a body")
	}
	msg.Subject, msg.Data = flags.Arg(0), []byte(flags.Arg(1))
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		return err
	}
	defer nc.Close()
	answer, err := nc.RequestMsg(msg, *timeout)
	if err != nil {
		return err
	}
	_, err = fmt.Println(string(answer.Data))
	return err
}
