package e2e_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"rejoin/shared/must"
)

// lives is the history of a log whose files are copied now and then, and whose
// older copies are put back. Each time a life ends and another begins, which has
// everything up to the copy's last sequences in common with it, and assigns all later
// ones again. The driver alone uses it.
type lives struct {
	copies    []string   // folders; those of lives that were given up are forgotten
	rollBacks []rollBack // the end of each life but the last
}

type rollBack struct {
	began     time.Duration
	life      string   // the folder as it was
	copy      string   // the folder that was put back
	positions []uint64 // of all subscribers, when the server was about to be stopped
}

// copyFiles copies the store while the server is stopped.
func (w *world) copyFiles(away time.Duration) {
	w.whileStopped(away, func(string) {
		w.lives.copies = append(w.lives.copies, w.copyTo("copy", len(w.lives.copies)))
	})
}

// rollBack puts an older copy of the store back while the server is stopped.
func (w *world) rollBack(away time.Duration) {
	l := &w.lives
	if len(l.copies) == 0 {
		return
	}
	rb := rollBack{began: time.Since(w.begun)}
	for _, s := range w.subscribers {
		s.mu.Lock()
		rb.positions = append(rb.positions, s.position)
		s.mu.Unlock()
	}
	w.whileStopped(away, func(store string) {
		rb.life = w.copyTo("life", len(l.rollBacks))
		older := int(away) % len(l.copies)
		l.copies = l.copies[:older+1]
		rb.copy = l.copies[older]
		must.NoError(w.t, errors.Join(os.RemoveAll(store), os.CopyFS(store, os.DirFS(rb.copy))))
	})
	l.rollBacks = append(l.rollBacks, rb)
}

func (w *world) copyTo(what string, n int) string {
	to := filepath.Join(w.t.TempDir(), what+strconv.Itoa(n))
	must.NoError(w.t, os.CopyFS(to, os.DirFS(w.nats.Dir())))
	return to
}

// contents has all entries of a store.
type contents struct {
	*truth
	last        []uint64   // by partition
	births      []string   // the first generation of each partition
	generations [][]string // all of each partition
}

// read reads a copy of a store with a server of its own, or when folder is empty
// the store that is in use.
func (w *world) read(folder string) contents {
	ctx, cancel := w.bounded()
	defer cancel()
	var nc *nats.Conn
	if folder == "" {
		nc = w.own.Conn
	} else {
		srv := w.startNATS(folder)
		defer srv.Stop()
		nc = srv.Connect()
		defer nc.Close()
	}
	c, err := readLog(ctx, nc, w.sc.settings.Partitions)
	if err != nil {
		w.t.Fatalf("%s cannot be read: %v", folder, err)
	}
	return c
}

func readLog(ctx context.Context, nc *nats.Conn, partitions int) (contents, error) {
	c := contents{truth: emptyTruth(partitions)}
	js, err := jetstream.New(nc)
	if err != nil {
		return c, err
	}
	for p := range partitions {
		stream, err := js.Stream(ctx, partitionName(p))
		if err != nil {
			return c, err
		}
		c.streams = append(c.streams, stream)
		info := stream.CachedInfo()
		// A wrong entry that was refused leaves none; checkRemoved finds one that was removed.
		if err := c.fill(ctx, p, info.State.LastSeq); err != nil {
			return c, err
		}
		var gens []string
		for g := range strings.SplitSeq(info.Config.Metadata["rejoin.generations"], ",") {
			id, _, _ := strings.Cut(g, ":")
			gens = append(gens, id)
		}
		c.last = append(c.last, info.State.LastSeq)
		c.births = append(c.births, info.Config.Metadata["rejoin.birth"])
		c.generations = append(c.generations, gens)
	}
	return c, nil
}
