package session

// Usage is the number of sessions, open or closed, and their size: the records of both are in memory.
type Usage struct {
	Sessions int64
	// MetadataBytes is the size of all metadata and members, as stored.
	MetadataBytes int64
}

// Plus returns the sum of both.
func (u Usage) Plus(other Usage) Usage {
	return Usage{u.Sessions + other.Sessions, u.MetadataBytes + other.MetadataBytes}
}

// Usage returns the usage of the record.
func (r Record) Usage() Usage { return Usage{1, int64(r.metadataBytes)} }

// Holder is the owner or client in whose share of all sessions a session counts.
type Holder struct {
	Owner  string
	Client string // where there is no owner; see [Record.Client]
}

// Anonymous reports whether the holder is no client in particular.
func (h Holder) Anonymous() bool { return h == Holder{} }

// Holder returns the holder in whose share the session counts.
func (r Record) Holder() Holder {
	if r.Owner != "" {
		return Holder{Owner: r.Owner}
	}
	return Holder{Client: r.Client}
}

// Usage returns the usage of all sessions of the copy, and of those of one holder. It takes as long
// for many sessions as for few.
func (r *Registry) Usage(of Holder) (all, own Usage) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if h := r.copy.holders[of]; h != nil {
		own = h.Usage
	}
	return r.copy.all, own
}

// holding is the usage of the sessions of one holder.
type holding struct {
	Holder
	Usage
}

// set enters a record, instead of the one that the copy has of its key.
func (c *bucketCopy) set(k string, rec Record) {
	if len(c.kept) > 0 && !c.kept[c.partition(rec.Session)] {
		return
	}
	old, had := c.records[k]
	if rec.Client == "" && had && old.Life == rec.Life {
		rec.Client = old.Client // neither log nor bucket has it
	}
	c.remove(k)
	if c.bare {
		rec.Metadata = nil
	}
	h := c.holders[rec.Holder()]
	if h == nil {
		h = &holding{Holder: rec.Holder()}
		c.holders[h.Holder] = h
	}
	h.Usage, c.all = h.Plus(rec.Usage()), c.all.Plus(rec.Usage())
	// Strings that many records share are held once, and so is a name that is its own key.
	rec.Client = h.Client
	if rec.Owner != "" {
		rec.Owner = h.Owner
	}
	switch rec.State {
	case Open:
		rec.State = Open
	case Closed:
		rec.State = Closed
	}
	if k == rec.Session {
		k = rec.Session // the other one is part of a subject
	}
	c.records[k] = rec
}

// remove takes out the record of a key, if there is one.
func (c *bucketCopy) remove(k string) {
	rec, ok := c.records[k]
	if !ok {
		return
	}
	delete(c.records, k)
	taken := Usage{-1, -int64(rec.metadataBytes)}
	c.all = c.all.Plus(taken)
	h := c.holders[rec.Holder()]
	if h.Usage = h.Plus(taken); h.Sessions == 0 {
		delete(c.holders, h.Holder)
	}
}
