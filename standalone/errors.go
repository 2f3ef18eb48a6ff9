package standalone

import "errors"

var (
	// ErrFolder is returned when the data folder cannot be used as it is.
	ErrFolder = errors.New("the data folder cannot be used")

	// ErrInUse is returned when another program uses the data folder.
	ErrInUse = errors.New("the data folder is in use")

	// ErrVersion is returned when the data folder is not of this program's version.
	ErrVersion = errors.New("the data folder is of another version")

	// ErrNoSpace is returned when there is too little free space to start.
	ErrNoSpace = errors.New("there is too little free space")

	// ErrServer is returned when the embedded NATS server fails.
	ErrServer = errors.New("the embedded NATS server failed")
)

// sentence is an error that shows nothing but one sentence for the user; the
// sentinel is there for errors.Is.
type sentence struct {
	text string
	is   error
}

func (e *sentence) Error() string { return e.text }
func (e *sentence) Unwrap() error { return e.is }
