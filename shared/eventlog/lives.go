package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"rejoin/shared/event"
	"rejoin/shared/natsconn"
)

// OpenSession stores an opening, if the session has none: of several callers at the
// same time one succeeds. Errors wrap [ErrExists], or are those of [Log.Publish].
func (l *Log) OpenSession(ctx context.Context, o Opening) (Opening, error) {
	data, err := o.encode()
	if err != nil {
		return Opening{}, err
	}
	ack, err := l.control(ctx, event.Subject{Session: o.Session, Kind: event.Open}, data)
	if errors.Is(err, ErrConflict) {
		return Opening{}, ErrExists
	}
	o.Sequence, o.Began = ack.Sequence, ack.Sequence
	return o, err
}

// ChangeOpening stores an opening in the place of the one at o.Sequence, whose o.Began it keeps: of
// several changes of the same opening one succeeds. o.Sequence 0 stands for one that the log has lost. Only members
// and metadata may change; o.Later comes from [Log.Opening]. Changes must grow with each change: readers take a
// second opening of the same life for a copy of the first, and the janitor compares Changes with the index. Errors
// wrap [ErrConflict] when the opening is not the newest of its name, or are those of [Log.Publish].
func (l *Log) ChangeOpening(ctx context.Context, o Opening) (Opening, error) {
	data, err := o.encode()
	if err != nil {
		return Opening{}, err
	}
	s := event.Subject{Partition: l.Partition(o.Session), Session: o.Session, Kind: event.Open}
	msg := nats.NewMsg(s.String())
	msg.Data = data
	msg.Header.Set(headerAgain, "1")
	msg.Header.Set(headerChanges, strconv.FormatUint(o.Changes, 10))
	setBegan(msg, o.Began)
	ack, err := l.storeAfter(ctx, s.Partition, msg, o.Sequence)
	o.Sequence = ack.Sequence
	return o, err
}

// Opening returns the newest opening of a session. Errors wrap [ErrNotFound], [ErrUnavailable] or
// [ErrMismatch].
func (l *Log) Opening(ctx context.Context, session string) (Opening, error) {
	s := event.Subject{Partition: l.Partition(session), Session: session, Kind: event.Open}
	msg, err := l.newestMessage(ctx, s.Partition, s.String())
	if err != nil {
		return Opening{}, err
	}
	o, err := OpeningIn(Entry{Subject: s, Sequence: msg.Sequence, Began: beganIn(msg.Header, msg.Sequence), Data: msg.Data})
	if err != nil {
		return Opening{}, err
	}
	o.Later = laterMembers(msg.Data)
	return o, nil
}

// Sealed reports whether a life was sealed, and the time, after which it has no new
// streams. The error wraps [ErrUnavailable].
func (l *Log) Sealed(ctx context.Context, session, life string) (at time.Time, sealed bool, err error) {
	s := event.Subject{Partition: l.Partition(session), Session: session, Life: life, Kind: event.Seal}
	msg, err := l.newest(ctx, s.Partition, s.String())
	if err != nil || msg == nil {
		return time.Time{}, false, err
	}
	return msg.Time, true, nil
}

// LifeOf returns the life of the newest entry of a session, and that entry's sequence. A life
// that is forgotten is none. The error wraps [ErrNotFound], [ErrUnavailable] or [ErrMismatch].
func (l *Log) LifeOf(ctx context.Context, session string) (life string, sequence uint64, err error) {
	p := l.Partition(session)
	msg, err := l.newestMessage(ctx, p, event.Subject{Partition: p, Session: session}.SessionFilter())
	if err != nil {
		return "", 0, err
	}
	s, err := event.ParseSubject(msg.Subject)
	switch {
	case err != nil:
		return "", 0, fmt.Errorf("%w: %w", ErrNotFound, err)
	case s.Kind == event.Trim && msg.Header.Get(headerForgotten) != "":
		return "", 0, fmt.Errorf("%w: the session %s is forgotten", ErrNotFound, session)
	case s.Kind == event.Open:
		o, err := OpeningIn(Entry{Subject: s, Sequence: msg.Sequence, Data: msg.Data})
		return o.Life, o.Sequence, err
	default:
		return s.Life, msg.Sequence, nil
	}
}

// EndStream ends a stream: when it returns no error, JetStream stores no event of the
// stream any more, from any publisher. It may be repeated. Errors are those of
// [Log.Publish]; after [ErrUnknown] the stream may have ended.
func (l *Log) EndStream(ctx context.Context, session, life, stream string) error {
	return l.once(ctx, event.Subject{Session: session, Life: life, Stream: stream, Kind: event.End})
}

// EndSession ends a life of a session, and all its streams: when it returns no error,
// JetStream stores nothing of the life any more, from any publisher. It may be repeated,
// and finishes what another process began. Errors are those of [Log.EndStream].
//
// The order makes the end the last entry: the seal refuses births, so the list of
// streams that is read after it is complete; each gets its end; then comes the end of
// the life.
func (l *Log) EndSession(ctx context.Context, session, life string) error {
	seal := event.Subject{Partition: l.Partition(session), Session: session, Life: life, Kind: event.Seal}
	if err := l.once(ctx, seal); err != nil {
		return err
	}
	streams, err := l.born(ctx, seal)
	if err != nil {
		return err
	}
	if err := l.endAll(ctx, session, life, streams); err != nil {
		return err
	}
	return l.once(ctx, event.Subject{Session: session, Life: life, Kind: event.End})
}

// ClearStream announces that a stream's events before this moment are cleared, or those of a
// whole life when stream is empty. It is for streams and lives that have ended: a second clear
// does nothing. Errors are those of [Log.Publish].
func (l *Log) ClearStream(ctx context.Context, session, life, stream string) error {
	return l.once(ctx, event.Subject{Session: session, Life: life, Stream: stream, Kind: event.Clear})
}

// endsAtOnce is how many ends of streams are in flight at a time.
const endsAtOnce = 256

func (l *Log) endAll(ctx context.Context, session, life string, streams []string) error {
	var ends errgroup.Group
	ends.SetLimit(endsAtOnce)
	for _, stream := range streams {
		ends.Go(func() error { return l.EndStream(ctx, session, life, stream) })
	}
	return ends.Wait()
}

// born returns the streams of a life that have a birth and no end. The answer counts only
// with the life's seal in it: the answer of a server that leads no more may be older.
func (l *Log) born(ctx context.Context, seal event.Subject) ([]string, error) {
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	info, err := l.stream(seal.Partition).Info(ctx, jetstream.WithSubjectFilter(seal.Filter()))
	if err != nil {
		return nil, apiError(err)
	}
	if _, ok := info.State.Subjects[seal.String()]; !ok {
		return nil, fmt.Errorf("%w: the answer about %s is out of date", ErrUnavailable, seal)
	}
	var streams []string
	for text := range info.State.Subjects {
		s, err := event.ParseSubject(text)
		if err != nil || s.Kind != event.Birth {
			continue
		}
		end := s
		end.Kind = event.End
		if _, ended := info.State.Subjects[end.String()]; !ended {
			streams = append(streams, s.Stream)
		}
	}
	return streams, nil
}

// once stores a control entry, unless there is one.
func (l *Log) once(ctx context.Context, s event.Subject) error {
	_, err := l.control(ctx, s, nil)
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}

// control stores a control entry where there is none under its subject; the error wraps
// [ErrConflict] when there is.
func (l *Log) control(ctx context.Context, s event.Subject, data []byte) (Ack, error) {
	s.Partition = l.Partition(s.Session)
	msg := nats.NewMsg(s.String())
	msg.Data = data
	return l.storeAfter(ctx, s.Partition, msg, 0)
}

// storeAfter stores a control entry if the newest entry under its subject lies at a sequence, or if there is
// none for 0; otherwise the error wraps [ErrConflict].
func (l *Log) storeAfter(ctx context.Context, p int, msg *nats.Msg, follows uint64) (Ack, error) {
	msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(follows, 10))
	return l.publish(ctx, p, msg)
}

// maxBirths bounds the streams that are remembered of each partition: some 10 MB.
const maxBirths = 1 << 15

// births are the streams of a partition that are known to have a birth in the log, so that a publisher asks for it
// once for each stream and not for each event. For a forgotten stream the log is asked, which costs two requests. A
// birth stays in the log as long as the life does, but a server that was restarted may have lost it, and the life
// may be over, and forgotten, after a reconnect: so it is known in one generation and on one connection.
type births struct {
	storing singleflight.Group // by subject
	known   *lru.Cache[birth, struct{}]
}

// birth is a birth in the log, with the generation and the connection in which it became known.
type birth struct {
	at         event.Subject
	generation string // the ID of the partition's newest generation
	connection uint64 // the number of the connection to NATS
}

func newBirths() *births {
	known, _ := lru.New[birth, struct{}](maxBirths) // fails only without a size
	return &births{known: known}
}
