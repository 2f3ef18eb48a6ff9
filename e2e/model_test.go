package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natsconn"
	"rejoin/shared/natstest"
)

// place is a stream, or the flow of a session when stream is empty.
type place struct{ session, stream string }

func (p place) String() string { return p.session + "/" + p.stream }

// truth is an independent record of everything that was ever stored. JetStream
// republishes each entry that it stores, in order, with the sequence; entries that a
// broken connection lost are read from the log itself. Entries removed before that are
// lost: their sequences are known, their sessions are not.
//
// It is safe for concurrent use.
type truth struct {
	partitions int
	moved      chan struct{} // closed and replaced when something is added

	streams []jetstream.Stream

	mu       sync.Mutex
	parts    []map[uint64]stored
	lost     []map[uint64]bool
	through  []uint64            // by partition: all up to here is known
	sessions map[string][]stored // the valid entries of a session, in order, of all lives
	// histories has those that were needed since the newest entry of their session. Each event
	// that a subscriber receives needs one.
	histories map[string]history
}

// stored is an entry as it was stored.
type stored struct {
	sequence uint64
	subject  event.Subject
	kind     event.Kind
	valid    bool // an event, or a control entry
	typ      string
	data     []byte
	upTo     uint64 // of a trim
	opens    string // the life that an opening names
}

func (s stored) place() place { return place{s.subject.Session, s.subject.Stream} }

const republished = "audit."

// newTruth makes JetStream republish the log's partitions, and records it from now on.
func newTruth(t testing.TB, nc *nats.Conn, partitions int) *truth {
	js := natstest.JetStream(t, nc)
	tr := emptyTruth(partitions)
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	sub := must.Value(nc.Subscribe(republished+">", tr.receive))(t)
	must.NoError(t, sub.SetPendingLimits(-1, -1))
	for p := range partitions {
		cfg := must.Value(js.Stream(ctx, partitionName(p)))(t).CachedInfo().Config
		maps.DeleteFunc(cfg.Metadata, func(k, _ string) bool { return !strings.HasPrefix(k, "rejoin.") })
		cfg.RePublish = &jetstream.RePublish{Source: ">", Destination: republished + ">"}
		tr.streams = append(tr.streams, must.Value(js.UpdateStream(ctx, cfg))(t))
	}
	return tr
}

func emptyTruth(partitions int) *truth {
	tr := &truth{
		partitions: partitions, moved: make(chan struct{}), through: make([]uint64, partitions),
		sessions: map[string][]stored{}, histories: map[string]history{},
	}
	for range partitions {
		tr.parts = append(tr.parts, map[uint64]stored{})
		tr.lost = append(tr.lost, map[uint64]bool{})
	}
	return tr
}

func partitionName(p int) string { return "MCP_" + strconv.Itoa(p) }

func (tr *truth) receive(msg *nats.Msg) {
	p, err := strconv.Atoi(strings.TrimPrefix(msg.Header.Get(jetstream.StreamHeader), "MCP_"))
	sequence, err2 := strconv.ParseUint(msg.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil || err2 != nil {
		panic(fmt.Sprintf("a republished message without its place: %v", msg.Header))
	}
	tr.add(p, sequence, msg.Header.Get(jetstream.SubjectHeader), msg.Header, msg.Data)
}

func (tr *truth) add(p int, sequence uint64, subject string, h nats.Header, data []byte) {
	s := stored{sequence: sequence, typ: event.DefaultType, data: data}
	if parsed, err := event.ParseSubject(subject); err == nil {
		s.subject, s.kind = parsed, parsed.Kind
		s.valid = parsed.Partition == p && event.Partition(parsed.Session, tr.partitions) == p
		if s.kind == event.Message {
			s.valid = s.valid && json.Valid(data)
		}
	}
	if typ := h.Get(eventlog.HeaderType); typ != "" && event.CheckType(typ) == nil {
		s.typ = typ
	}
	if s.kind == event.Open {
		s.opens = openedBy(data)
	}
	if s.kind == event.Trim {
		s.upTo, _ = strconv.ParseUint(h.Get("Rejoin-Up-To"), 10, 64) // a trim that cannot be read removes nothing
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if old, ok := tr.parts[p][sequence]; ok && !bytes.Equal(old.data, data) {
		panic(fmt.Sprintf("two events at %d/%d", p, sequence))
	}
	if _, ok := tr.parts[p][sequence]; ok {
		return
	}
	tr.parts[p][sequence] = s
	delete(tr.lost[p], sequence)
	if s.valid {
		all := tr.sessions[s.subject.Session]
		i, _ := slices.BinarySearchFunc(all, sequence, func(e stored, q uint64) int { return cmp.Compare(e.sequence, q) })
		tr.sessions[s.subject.Session] = slices.Insert(all, i, s)
		delete(tr.histories, s.subject.Session)
	}
	tr.advance(p)
}

// advance notes how far everything is known. The caller holds mu.
func (tr *truth) advance(p int) {
	for {
		next := tr.through[p] + 1
		if _, ok := tr.parts[p][next]; !ok && !tr.lost[p][next] {
			break
		}
		tr.through[p] = next
	}
	close(tr.moved)
	tr.moved = make(chan struct{})
}

// patiently asks until there is an answer, which ErrMsgNotFound is as well; other errors are waited out.
func patiently[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	for {
		once, cancel := context.WithTimeout(ctx, time.Second)
		answer, err := ask(once)
		cancel()
		if err == nil || errors.Is(err, jetstream.ErrMsgNotFound) {
			return answer, err
		}
		if !natsconn.Pause(ctx, 10*time.Millisecond) {
			return answer, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// get reads a sequence from the log itself.
func (tr *truth) get(ctx context.Context, p int, sequence uint64) (*jetstream.RawStreamMsg, error) {
	return patiently(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) { return tr.streams[p].GetMsg(ctx, sequence) })
}

// info asks for a partition's stream.
func (tr *truth) info(ctx context.Context, p int, with ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	return patiently(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) { return tr.streams[p].Info(ctx, with...) })
}

// fences returns the streams and sessions, by an empty stream, that have an end or a seal in a
// partition.
func (tr *truth) fences(ctx context.Context, p int) map[place]bool {
	all := map[place]bool{}
	info, err := tr.info(ctx, p, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return all // the world has ended
	}
	for subject := range info.State.Subjects {
		if s, err := event.ParseSubject(subject); err == nil && (s.Kind == event.End || s.Kind == event.Seal) {
			all[place{s.Session, s.Stream}] = true
		}
	}
	return all
}

// fill reads the missing entries up to a sequence.
func (tr *truth) fill(ctx context.Context, p int, upTo uint64) error {
	for sequence := uint64(1); sequence <= upTo; sequence++ {
		if tr.knows(p, sequence) {
			continue
		}
		msg, err := tr.get(ctx, p, sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			tr.mu.Lock()
			if _, ok := tr.parts[p][sequence]; !ok {
				tr.lost[p][sequence] = true
				tr.advance(p)
			}
			tr.mu.Unlock()
			continue
		}
		if err != nil {
			return err
		}
		tr.add(p, sequence, msg.Subject, msg.Header, msg.Data)
	}
	return nil
}

func (tr *truth) knows(p int, sequence uint64) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	_, ok := tr.parts[p][sequence]
	return ok || tr.lost[p][sequence]
}

// await waits until everything up to a sequence is known.
func (tr *truth) await(ctx context.Context, p int, upTo uint64) error {
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	for {
		tr.mu.Lock()
		complete := tr.through[p] >= upTo
		moved := tr.moved
		tr.mu.Unlock()
		if complete {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		case <-timer.C:
			return tr.fill(ctx, p, upTo)
		}
	}
}

// complete waits until all entries stored now are known, and returns the partitions' last
// sequences.
func (tr *truth) complete(ctx context.Context) ([]uint64, error) {
	var ends []uint64
	for p := range tr.parts {
		last, err := tr.upToNow(ctx, p)
		if err != nil {
			return nil, err
		}
		ends = append(ends, last)
	}
	return ends, nil
}

// upToNow waits until all entries of a partition now are known, and returns its last
// sequence.
func (tr *truth) upToNow(ctx context.Context, p int) (uint64, error) {
	info, err := tr.info(ctx, p)
	if err != nil {
		return 0, err
	}
	return info.State.LastSeq, tr.await(ctx, p, info.State.LastSeq)
}

func (tr *truth) partition(session string) int { return event.Partition(session, tr.partitions) }

// all returns the entries of a session in order.
func (tr *truth) all(session string) []stored {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.Clone(tr.sessions[session])
}

// history is the state of one session at one moment. It is shared, and does not change.
type history struct {
	life    string            // that the newest opening names
	entries []stored          // of that life
	clears  []stored          // among entries
	closed  map[string]uint64 // by stream, "" for the session: its end
	cleared map[string]uint64 // the last clear
	trimmed map[string]uint64 // up to where trims go
	behind  []stored          // the events after an end, which cancel it
}

func (tr *truth) history(session string) history {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	h, ok := tr.histories[session]
	if !ok {
		h = historyOf(tr.sessions[session])
		tr.histories[session] = h
	}
	return h
}

// historyOf is of all entries of a session, in order.
func historyOf(all []stored) history {
	h := history{closed: map[string]uint64{}, cleared: map[string]uint64{}, trimmed: map[string]uint64{}}
	for _, s := range all {
		if s.kind == event.Open {
			h.life = s.opens
		}
	}
	for _, s := range all {
		if s.kind == event.Open || s.subject.Life != h.life {
			continue
		}
		h.entries = append(h.entries, s)
		switch s.kind {
		case event.End:
			h.closed[s.subject.Stream] = s.sequence
		case event.Clear:
			h.cleared[s.subject.Stream] = s.sequence
			h.clears = append(h.clears, s)
		case event.Trim:
			h.trimmed[s.subject.Stream] = max(h.trimmed[s.subject.Stream], s.upTo)
		case event.Message:
			if h.closedAt(s.subject.Stream) != 0 {
				h.behind = append(h.behind, s)
				delete(h.closed, s.subject.Stream)
				delete(h.closed, "")
			}
		default:
		}
	}
	return h
}

// openedBy returns the life that an opening names.
func openedBy(data []byte) string {
	var o eventlog.Opening
	_ = json.Unmarshal(data, &o) // an opening that cannot be read names none
	return o.Life
}

// closedAt returns the sequence at which a stream ended, 0 while it is open. The end of the
// session is after those of its streams, and it alone ends a stream that has no events.
func (h history) closedAt(stream string) uint64 {
	if at := h.closed[stream]; at != 0 {
		return at
	}
	return h.closed[""]
}

func (h history) clearedAt(stream string) uint64 { return max(h.cleared[""], h.cleared[stream]) }

// events returns the events of a stream, or of all when stream is empty, in
// after < sequence ≤ upTo.
func (h history) events(stream string, after, upTo uint64) []stored {
	var out []stored
	for _, s := range h.entries {
		if s.kind == event.Message && (stream == "" || s.subject.Stream == stream) && s.sequence > after && s.sequence <= upTo {
			out = append(out, s)
		}
	}
	return out
}

// at returns the entry that was stored at a sequence.
func (tr *truth) at(p int, sequence uint64) (stored, bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	s, ok := tr.parts[p][sequence]
	return s, ok
}

// lostIn reports whether a sequence in after < sequence ≤ upTo is known to have been
// stored, and nothing else about it.
func (tr *truth) lostIn(p int, after, upTo uint64) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for sequence := range tr.lost[p] {
		if sequence > after && sequence <= upTo {
			return true
		}
	}
	return false
}

// removed reports whether an event is removed: no longer in the log, cleared, or trimmed.
func (tr *truth) removed(ctx context.Context, h history, s stored) (bool, error) {
	if s.sequence < h.clearedAt(s.subject.Stream) || s.sequence <= max(h.trimmed[""], h.trimmed[s.subject.Stream]) {
		return true, nil
	}
	_, err := tr.get(ctx, s.subject.Partition, s.sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return true, nil
	}
	return false, err
}
