package standalone

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
)

// folderVersion is the version of the layout of the data folder, which is that of the log in it:
// NATS, which would remove expired messages, is not started on a log of an unknown version.
//
//	VERSION      this number; written before anything else
//	LOCK         the process that uses the folder; locked for as long as it does
//	jetstream/   the embedded server's store
//	nats.nk      the key of the embedded server's user, once it listens with access control
const folderVersion = eventlog.Version

const (
	versionFile = "VERSION"
	lockFile    = "LOCK"
	keyFile     = "nats.nk"
)

// folder is the data folder, locked for this process. The lock ends with the process,
// however it ends, so that kill -9 leaves nothing to tidy up.
type folder struct {
	path string
	lock *os.File
	mine bool  // the lock file holds this process' ID
	free int64 // bytes that were free when it was opened
}

// openFolder makes the folder if it is missing, locks it, checks its version and
// the free space. It changes nothing in a folder that it refuses. An error is one
// sentence for the user.
func openFolder(path string, minFree int64) (*folder, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, refused(path, err)
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, refused(path, err)
	}
	// Before the lock, only the version is checked: it tells whether the folder is ours
	// to put a lock into.
	if err := checkVersion(path); err != nil {
		return nil, err
	}
	free, err := freeBytes(path)
	if err != nil {
		return nil, refused(path, err)
	}
	if free < minFree {
		return nil, fmt.Errorf("%s has %s of free space, and --min-free-bytes requires %s; free some space, or choose another folder with --data",
			path, flagtype.FormatSize(free), flagtype.FormatSize(minFree))
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, refused(path, err)
	}
	f := &folder{path: path, lock: lock, free: free}
	if err := f.take(); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *folder) take() error {
	err := syscall.Flock(int(f.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("%s is in use by another rejoin; stop that one, or choose another folder with --data", f.path)
	}
	if err != nil {
		return refused(f.path, err)
	}
	if err := checkVersion(f.path); err != nil { // again: another program may have been here
		return err
	}
	if err := f.writeVersion(); err != nil {
		return err
	}
	return f.writePID()
}

// writePID writes the process ID into the lock file, for people.
func (f *folder) writePID() error {
	err := f.lock.Truncate(0)
	if err == nil {
		_, err = f.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return refused(f.path, err)
	}
	f.mine = true
	return nil
}

// close releases the folder, and removes the process ID, which another process may have later.
// It unlocks the file before it closes it: a process that is being started at this moment has a
// copy of the descriptor until it runs its program, and with it the lock.
func (f *folder) close() {
	if f.mine {
		_ = f.lock.Truncate(0) // after a failure it is as after a kill
	}
	_ = syscall.Flock(int(f.lock.Fd()), syscall.LOCK_UN)
	_ = f.lock.Close()
}

// checkVersion reports whether a folder is empty, or of this program's version.
func checkVersion(path string) error {
	text, err := os.ReadFile(filepath.Join(path, versionFile))
	if errors.Is(err, fs.ErrNotExist) {
		return checkEmpty(path)
	}
	if err != nil {
		return refused(path, err)
	}
	if v := strings.TrimSpace(string(text)); v != folderVersion {
		return fmt.Errorf("%s has version %.20q and this rejoin reads version %q; use the rejoin that wrote it, or choose another folder with --data",
			path, v, folderVersion)
	}
	return nil
}

// checkEmpty reports whether a folder without a version has no files of another program: the
// version is written before anything else, so other files are not ours.
func checkEmpty(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return refused(path, err)
	}
	for _, e := range entries {
		switch e.Name() {
		case lockFile, versionFile, versionFile + ".new", "lost+found":
		default:
			return fmt.Errorf("%s holds other files and was not made by rejoin; choose an empty folder with --data", path)
		}
	}
	return nil
}

// writeVersion writes the version, unless it is there, so that it is there as a
// whole or not at all.
func (f *folder) writeVersion() error {
	name := filepath.Join(f.path, versionFile)
	if _, err := os.Stat(name); err == nil {
		return nil
	}
	if err := replaceFile(name, folderVersion+"\n", 0o640); err != nil {
		return refused(f.path, err)
	}
	return nil
}

// replaceFile replaces a file as a whole or not at all: neither a kill nor a full disk leaves a
// part of it.
func replaceFile(name, text string, mode fs.FileMode) error {
	file, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(name+".new", name)
	}
	return err
}

// isNew reports whether no log was made in the folder yet.
func (f *folder) isNew() bool {
	_, err := os.Stat(filepath.Join(f.path, "jetstream"))
	return errors.Is(err, fs.ErrNotExist)
}

// refused returns the error of a folder that cannot be used, with advice.
func refused(path string, err error) error {
	if cause := (*fs.PathError)(nil); errors.As(err, &cause) {
		err = cause.Err
	}
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("the disk that holds %s is full; free some space, or choose another folder with --data", path)
	}
	return fmt.Errorf("cannot use %s as the data folder (%w); make it writable, or choose another with --data", path, err)
}

// freeBytes is how much this user may still write to the disk that holds path.
func freeBytes(path string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil //nolint:gosec,unconvert // below 8 EiB; the types differ between systems
}
