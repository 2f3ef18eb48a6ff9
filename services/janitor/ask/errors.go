package ask

import (
	"errors"
	"slices"
	"strings"

	"rejoin/services/janitor/lease"
)

var (
	// ErrInvalid is returned for bytes that are no valid question or answer.
	ErrInvalid = errors.New("not a question to a janitor, or no answer")
	// ErrBusy is returned when too many questions wait for answers.
	ErrBusy = errors.New("too many questions wait for other janitors")
	// ErrTooLarge is returned when the answers are larger than 32 MiB.
	ErrTooLarge = errors.New("the answers of the other janitors are too large")
)

// Lacking is the error when some partitions have no answer.
type Lacking struct {
	// Unanswered are those that no janitor has reported in time as its own, or has answered for.
	Unanswered []int
	// Incomplete are those of which the janitor's ledger is not complete yet.
	Incomplete []int
	// Disconnected says that there is no connection to NATS, so no janitor could be asked.
	Disconnected bool
}

func (l *Lacking) Error() string {
	var all []string
	switch {
	case len(l.Unanswered) == 0:
	case l.Disconnected:
		all = append(all, "NATS is unavailable, and other janitors hold "+partitions(l.Unanswered)+".")
	default:
		all = append(all, "No janitor answers for "+partitions(l.Unanswered)+".")
	}
	if len(l.Incomplete) > 0 {
		all = append(all, "The janitor has not read the whole log yet: "+partitions(l.Incomplete)+".")
	}
	return strings.Join(all, " ")
}

// partitions names some, in ascending order.
func partitions(numbers []int) string {
	noun := "partitions "
	if len(numbers) == 1 {
		noun = "partition "
	}
	return noun + lease.Ranges(slices.Sorted(slices.Values(numbers)))
}
