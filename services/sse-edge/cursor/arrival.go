package cursor

// Arrival is how a client came. Its zero value is from the start.
type Arrival uint8

// Where a reader began: at the oldest event, at the end of the log, at a cursor in the window, or
// at one below it.
const (
	FromStart Arrival = iota
	FromNow
	FromWindow
	FromLog
)
