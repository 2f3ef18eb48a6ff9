package ask

import (
	"fmt"
	"slices"
	"strings"
)

// Lacking is the error when some partitions have no answer.
type Lacking struct {
	// Without are those of which no janitor has said in time that it holds them, or given the
	// answer.
	Without []int
	// Incomplete are those of which the janitor's ledger is not complete yet.
	Incomplete []int
	// Away says that there is no connection to NATS, so nobody could be asked.
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
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		switch j - i {
		case 0:
			parts = append(parts, fmt.Sprint(all[i]))
		case 1:
			parts = append(parts, fmt.Sprint(all[i]), fmt.Sprint(all[j]))
		default:
			parts = append(parts, fmt.Sprintf("%d to %d", all[i], all[j]))
		}
		i = j + 1
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
