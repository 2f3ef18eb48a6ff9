package edge

// arrival is how a client came. Its zero value is from the start.
type arrival uint8

const (
	fromStart arrival = iota
	fromNow
	fromWindow
	fromLog
)
