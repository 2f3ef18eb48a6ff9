package session

import "context"

// Owned returns the record of a session that belongs to owner. The error wraps
// [ErrNotFound] when there is none of this name and when it is another's, alike: the log
// and the index are asked in both cases, so that not even the time it takes tells them
// apart. A session that was opened without an owner belongs to nobody, and an empty owner
// has none. Other errors are those of [Registry.Get].
func (r *Registry) Owned(ctx context.Context, name, owner string) (Record, error) {
	if rec, ok := r.Session(name); ok && rec.State == Open && rec.belongsTo(owner) {
		return rec, nil
	}
	f, err := r.find(ctx, name)
	if err != nil {
		return Record{}, err
	}
	whose := f.indexed
	if f.opening != nil {
		whose = fromLog(*f.opening)
	}
	if !whose.belongsTo(owner) {
		return Record{}, ErrNotFound
	}
	return r.judge(ctx, f)
}

func (r Record) belongsTo(owner string) bool { return owner != "" && r.Owner == owner }
