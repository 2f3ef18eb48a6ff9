package ledger

import "slices"

// Firsts keeps the first N of the values that are added, in the order of Compare.
type Firsts[T any] struct {
	N       int
	Compare func(a, b T) int
	kept    []T
	more    bool
}

// Add adds values, and keeps those that are among the first N.
func (f *Firsts[T]) Add(more ...T) {
	if f.kept = append(f.kept, more...); len(f.kept) >= 2*f.N+2 {
		f.cut()
	}
}

func (f *Firsts[T]) cut() {
	slices.SortFunc(f.kept, f.Compare)
	if len(f.kept) > f.N {
		f.kept, f.more = f.kept[:f.N], true
	}
}

// beyond reports whether a value would surely not be kept.
func (f *Firsts[T]) beyond(one T) bool { return f.more && f.Compare(f.kept[f.N-1], one) < 0 }

// All returns the kept values, in order, and whether there were more.
func (f *Firsts[T]) All() (kept []T, more bool) {
	f.cut()
	return f.kept, f.more
}
