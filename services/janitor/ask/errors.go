package ask

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"rejoin/services/janitor/lease"
)

var (
	// ErrInvalid is returned for what is not a question or an answer.
	ErrInvalid = errors.New("not a question to a janitor, or no answer")
	// ErrBusy is returned when too many questions wait for answers.
	ErrBusy = errors.New("too many questions wait for other janitors")
	// ErrTooLarge is returned when the answers are larger than 32 MiB.
	ErrTooLarge = errors.New("the answers of the other janitors are too large")
)

// Lacking is the error when some partitions have no answer.
type Lacking struct {
	// Without are those of which no janitor has said in time that it holds them, or given the
	// answer.
	Without []int
	// Incomplete are those of which the janitor's ledger is not complete yet.
	Incomplete []int
	// Away says that there is no connection to NATS, so no janitor could be asked.
	Away bool
}

func (l *Lacking) Error() string {
	var all []string
	switch {
	case len(l.Without) == 0:
	case l.Away:
		all = append(all, "NATS is unavailable, and other janitors hold "+partitions(l.Without)+".")
	default:
		all = append(all, "No janitor answers for "+partitions(l.Without)+".")
	}
	if len(l.Incomplete) > 0 {
		all = append(all, "The janitor has not read the whole log yet: "+partitions(l.Incomplete)+".")
	}
	return strings.Join(all, " ")
}

// partitions writes numbers in ascending order, as ranges.
func partitions(numbers []int) string {
	all := slices.Clone(numbers)
	slices.Sort(all)
	var parts []string
	for _, r := range lease.Runs(all) {
		switch r.Last - r.First {
		case 0:
			parts = append(parts, fmt.Sprint(r.First))
		case 1:
			parts = append(parts, fmt.Sprint(r.First), fmt.Sprint(r.Last))
		default:
			parts = append(parts, fmt.Sprintf("%d to %d", r.First, r.Last))
		}
	}
	noun := "partitions "
	if len(all) == 1 {
		noun = "partition "
	}
	if n := len(parts); n > 1 {
		return noun + strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
	return noun + parts[0]
}
