package client

// verdict is the outcome of one message of a request.
type verdict struct {
	kind   verdictKind
	stored Stored // of a stored one
	err    error  // of all others
}

type verdictKind uint8

const (
	// untried: the server has not tried to store it, or has reported that it is not stored.
	untried verdictKind = iota
	// unknown: it may be stored.
	unknown
	// refused: it is not stored, and will not be.
	refused
	// stored: it is.
	stored
)

// all gives every message of a request the same verdict.
func all(verdicts []verdict, kind verdictKind, err error) {
	for i := range verdicts {
		verdicts[i] = verdict{kind: kind, err: err}
	}
}
