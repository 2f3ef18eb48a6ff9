package session

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/natsconn"
)

// Visible returns the record of a session that a caller may use, as may reports; may must not
// depend on the session's state, and may not wait. The error wraps [ErrNotFound] when there is
// no session of this name and when the caller may not use it, alike: in both cases two requests
// are made, and their answers are equally small, so that not even the time they take tells them
// apart. A session without an owner is visible to no subject. Other errors are those of
// [Registry.Get].
func (r *Registry) Visible(ctx context.Context, name string, may func(Record) bool) (Record, error) {
	visible := func(rec Record) bool { return rec.Owner != "" && may(rec) }
	rec, ok := r.Session(name)
	switch {
	case ok && rec.State == Open && visible(rec):
		return rec, nil
	case ok && rec.Revision != 0 && !visible(rec):
		// A record and an opening hold up to 16 KB of metadata each, which takes 400 µs
		// more than an empty answer. They are requested only when the log may have
		// changed by now.
		current, err := r.current(ctx, rec)
		if err != nil {
			return Record{}, err
		}
		if current {
			return Record{}, ErrNotFound
		}
	}
	f, err := r.find(ctx, name)
	if err != nil {
		return Record{}, err
	}
	whose := f.registered
	if f.opening != nil {
		whose = fromLog(*f.opening)
	}
	if !visible(whose) {
		return Record{}, ErrNotFound
	}
	return r.judge(ctx, f)
}

// current reports whether the copy of a registered record still names the session's owner: the
// bucket has nothing newer of its key, and no open life was sealed. A name is opened again only
// after its record was removed, which is newer. (Of a bucket that is older than the log that
// holds once the janitor has repaired it.) It takes two requests, as find does, and when it
// returns true both were answered that there is no such entry.
func (r *Registry) current(ctx context.Context, rec Record) (bool, error) {
	ctx, done := natsconn.While(ctx, r.nc)
	defer done()
	_, err := r.bucket.GetMsg(ctx, rec.Revision+1, jetstream.WithGetMsgSubject("$KV."+Bucket+"."+key(rec.Session)))
	switch {
	case err == nil:
		return false, nil
	case !errors.Is(err, jetstream.ErrMsgNotFound):
		return false, unavailable(err)
	}
	_, sealed, err := r.events.Sealed(ctx, rec.Session, rec.Life)
	if err != nil {
		return false, unavailable(err)
	}
	return !sealed || rec.State == Closed, nil
}
