package mcpstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// Append stores an event under the stream's next index, and returns when JetStream has
// it. The end of ctx does not end it, since the client whose connection broke is the one that
// resumes. While NATS is unavailable it tries again, under one key: the event is stored once.
//
// An Append that fails has used its index, as it has in the SDK (docs/upstream/0029). After
// then reports a loss to each client that resumes before it. When the Append before has failed
// as well and NATS is still unavailable, Append fails at once.
//
// Errors wrap [ErrInvalidName], [session.ErrClosed], [eventlog.ErrTooLarge],
// [eventlog.ErrFull], or report that NATS is unavailable; with [eventlog.ErrUnknown] the event may
// be stored all the same.
func (s *Store) Append(ctx context.Context, sessionID, streamID string, data []byte) error {
	if sessionID == "" {
		return nil
	}
	at, err := placeOf(sessionID, streamID)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // the client that the event is for may be disconnected
	st := s.streams.use(at)
	release, err := st.own(ctx) // ctx has no end, but each holder of the token has a time-out
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if !st.lost || s.backend.Conn.IsConnected() {
		err = s.store(ctx, st, data)
	} else {
		err = fmt.Errorf("%w: %w", eventlog.ErrUnavailable, errLostBefore)
	}
	st.add(1)
	if st.lost = err != nil; st.lost {
		s.breaks(st)
	}
	return err
}

// errLostBefore is the reason why an Append was not tried.
var errLostBefore = errors.New("NATS is unavailable, and the event before is lost")

// store stores an event under the next index.
func (s *Store) store(ctx context.Context, st *stream, data []byte) error {
	return patiently(ctx, func() error {
		rec, _, err := s.register(ctx, st.at.session)
		if err == nil {
			err = s.load(ctx, st, rec.Life)
		}
		if err != nil {
			return err
		}
		return s.attempt(ctx, st, index{n: st.counted(), writer: st.writer}, data)
	})
}

// attempt publishes an event once. The key is that of its index, so that the first event
// that was stored under it is the only one.
func (s *Store) attempt(ctx context.Context, st *stream, i index, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AckTimeout)
	defer cancel()
	_, err := s.backend.Log.Publish(ctx, eventlog.Event{
		Session: st.at.session, Life: st.life, Stream: st.at.stream, Data: data,
		Key: i.writer, KeyIndex: uint64(i.n), //nolint:gosec // not negative
		Index: i.String(), Final: final(st.at, data),
	})
	if !errors.Is(err, session.ErrClosed) {
		return err
	}
	// The registry's copy may have shown another life than the one that is open.
	if rec, getErr := s.backend.Sessions.Get(ctx, st.at.session); getErr == nil && rec.State == session.Open && rec.Life != st.life {
		return fmt.Errorf("%w: session %s was opened again", eventlog.ErrUnavailable, st.at.session)
	}
	return err
}

// final reports whether a message is the last of its stream: a response, since a
// request's stream ends with it. In a batch (2025-03-26) there may be more, which
// subscribers of /v1 do not see.
func final(at place, data []byte) bool {
	if at.stream == standalone || len(data) == 0 {
		return false
	}
	msg, err := jsonrpc.DecodeMessage(data)
	_, response := msg.(*jsonrpc.Response)
	return err == nil && response
}
