package standalone

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/minio/highwayhash"
	"github.com/nats-io/nats-server/v2/server"
)

// mendMetadata finishes an update that a kill interrupted: the server replaces the two files that hold a
// stream's metadata one after the other, and does not find a stream whose two files do not match
// (docs/upstream/0036). Nothing runs in the folder yet.
func mendMetadata(f *folder, log *slog.Logger) error {
	metas, err := fs.Glob(os.DirFS(f.path), "jetstream/*/streams/*/"+server.JetStreamMetaFile) // the path itself is no pattern
	if err != nil {
		return refused(f.path, err)
	}
	for _, meta := range metas {
		meta = filepath.Join(f.path, meta)
		mended, err := mendStream(meta)
		if err != nil {
			return refused(meta, err)
		}
		if mended {
			log.Warn("the metadata of a stream is whole again after a kill", "file", meta)
		}
	}
	return nil
}

// mendStream writes the checksum of a stream's metadata if it does not match and is older, or is missing or
// empty, as after a power cut (docs/upstream/0007). One that is not older says that the metadata were damaged later.
func mendStream(meta string) (mended bool, err error) {
	text, err := os.ReadFile(meta)
	if err != nil {
		return false, err
	}
	name := filepath.Base(filepath.Dir(meta))
	var info server.FileStreamInfo
	if _ = json.Unmarshal(text, &info); info.Name != name { // text that is not JSON gives no name
		return false, nil // the server reports it
	}
	key := sha256.Sum256([]byte(name))
	hash, err := highwayhash.New64(key[:])
	if err != nil {
		return false, err
	}
	_, _ = hash.Write(text) // never fails (hash.Hash)
	sum, checksum := filepath.Join(filepath.Dir(meta), server.JetStreamMetaFileSum), hex.EncodeToString(hash.Sum(nil))
	is, err := os.ReadFile(sum)
	if string(is) == checksum || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if len(is) > 0 {
		a, err1 := os.Stat(sum)
		b, err2 := os.Stat(meta)
		if err := errors.Join(err1, err2); err != nil || !a.ModTime().Before(b.ModTime()) {
			return false, err
		}
	}
	return true, replaceFile(sum, checksum, 0o600)
}
