package session

import "context"

// Owned returns the record of a session that belongs to owner. The error wraps
// [ErrNotFound] when there is none of this name and when it is another's, alike: the
// bucket's leader is asked in both cases, so that not even the time it takes tells them
// apart. A session that was made without an owner belongs to nobody, and an empty owner
// has none. Other errors are those of [Registry.Get].
func (r *Registry) Owned(ctx context.Context, name, owner string) (Record, error) {
	if rec, ok := r.Session(name); ok && rec.belongsTo(owner) {
		return rec, nil
	}
	rec, err := r.Get(ctx, name, "") // the copy may be a moment behind
	if err != nil {
		return Record{}, err
	}
	if !rec.belongsTo(owner) {
		return Record{}, ErrNotFound
	}
	r.put(key(name, ""), rec)
	return rec, nil
}

func (r Record) belongsTo(owner string) bool { return owner != "" && r.Owner == owner }
