package flagtype

import "os"

// FileError is an error about a file that a flag names. The file may be written or mounted at this moment, so
// the program may start the next time.
type FileError struct{ Err error }

func (e *FileError) Error() string { return e.Err.Error() }

// Unwrap returns the error below.
func (e *FileError) Unwrap() error { return e.Err }

// ReadTwice reports whether the file of a name can be read again: a file that exists and is not regular, as a
// pipe of the shell, is empty the second time. A check leaves that to the program.
func ReadTwice(name string) bool {
	info, err := os.Stat(name)
	return err != nil || info.Mode().IsRegular()
}
