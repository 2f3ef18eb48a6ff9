package window

// SessionView is a window's knowledge of a session.
type SessionView struct {
	Session string
	// Life is the newest life, and End the sequence of its end; 0 while it is open. Began is that of its first
	// opening; 0 when the window does not know it, which then lies before its start: an opening is written again before the
	// floor of the log passes it.
	Life       string
	Began, End uint64
	// Before is the previous life, and BeforeBegan the sequence at which it began; empty and 0 when the window
	// does not know it.
	Before      string
	BeforeBegan uint64
	// Others is the sequence of the newest event of all other lives; 0 when the window has none.
	Others uint64
	// Owner and Members are those of its newest opening, if the window saw one.
	Owner   string
	Members []string
}
