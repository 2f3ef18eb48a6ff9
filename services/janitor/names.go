package janitor

import (
	"cmp"
	"slices"

	"rejoin/shared/event"
)

// names are the keys of a map in order of their tokens. They are made when they are
// first asked for and kept from then on: an answer of many pages sorts once.
type names struct {
	order []named
	added []named // since then, in no order
}

type named struct{ token, name string }

func byToken(a, b named) int { return cmp.Compare(a.token, b.token) }

// sorted returns the names of a map; n is where they are kept, nil when they have
// to be made anew.
func sorted[V any](n **names, m map[string]V) *names {
	if *n == nil {
		*n = &names{added: make([]named, 0, len(m))}
		for name := range m {
			(*n).add(name)
		}
	}
	(*n).merge()
	return *n
}

// add takes in a name that is not there yet. Without names there is nothing to do.
func (n *names) add(name string) {
	if n != nil {
		n.added = append(n.added, named{event.Token(name), name})
	}
}

func (n *names) merge() {
	if len(n.added) == 0 {
		return
	}
	slices.SortFunc(n.added, byToken)
	i, j := len(n.order)-1, len(n.added)-1
	n.order = append(n.order, n.added...)
	for at := len(n.order) - 1; j >= 0; at-- { // from the end, so that nothing is overwritten
		if i >= 0 && byToken(n.order[i], n.added[j]) > 0 {
			n.order[at] = n.order[i]
			i--
		} else {
			n.order[at] = n.added[j]
			j--
		}
	}
	n.added = nil
}

// from returns the names whose tokens are not before one. The slice is good until
// the next name is added.
func (n *names) from(token string) []named {
	i, _ := slices.BinarySearchFunc(n.order, named{token: token}, byToken)
	return n.order[i:]
}
