package flagtype

import "os"

// FileError is an error about a file that a flag names. The file may be written or mounted at this moment, so
// the program may start the next time.
type FileError struct{ Err error }

func (e *FileError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *FileError) Unwrap() error { return e.Err }

// ReadTwice reports whether what a name stands for can be read again: what is there and no regular file, as a
// pipe of the shell, is empty the second time. A check leaves that to the program.
func ReadTwice(name string) bool {
	info, err := os.Stat(name)
	return err != nil || info.Mode().IsRegular()
}
