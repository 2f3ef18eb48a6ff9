package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// AnswerOrOpen is called before an event of a call is stored. If the event is the only one, it is the client's
// answer. Otherwise AnswerOrOpen makes sure that the session is in the log, and refers the client to it.
// If there are too many sessions, all messages but the response are left out. done says that the event must not be
// stored: it is the answer, or left out. Errors are [call.ErrClosed], and [upstream.ErrTooLarge] for an event that NATS does not carry.
func (h *Session) AnswerOrOpen(c *call.Call, it call.Item) (done bool, err error) {
	d := h.Demand
	if d == nil {
		return false, nil
	}
	if int64(len(it.Data)) > h.Host.Backend.Conn.MaxPayload()-eventlog.HeaderRoom {
		return false, upstream.ErrTooLarge
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if it.Final && c.Tell(rpc.Answer{Status: mcp.StatusOf(it.Data), Data: it.Data}) {
		return true, nil
	}
	if c.WasAnswered() {
		return false, nil // the client has its immediate answer
	}
	h.openOnce(d)
	if errors.Is(d.failed, errLimit) && !d.listens {
		return true, nil // the response is the answer, if it comes in time
	}
	if d.failed != nil {
		c.Tell(d.notOpened()) // unless the response came meanwhile
		return false, call.ErrClosed
	}
	c.Tell(rpc.Answer{Status: http.StatusAccepted})
	return false, nil
}

// OpenForTask makes sure that the session is in the log, and is kept there for as long as its task
// once the task is over.
func (h *Session) OpenForTask() error {
	d, s := h.Demand, h.Host
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meta.Retention = &records.Retention{KeepClosed: int64(max(CallKept, s.Config.TaskTTL) / time.Second)}
	first := !d.opened
	if h.openOnce(d); first || d.failed != nil {
		return d.failed
	}
	ctx, cancel := context.WithTimeout(s.Life, s.Config.CloseTimeout())
	defer cancel()
	data, err := json.Marshal(d.meta)
	if err == nil {
		err = s.SetMetadata(ctx, h.Name, h.Life, data)
	}
	return err
}

// openWithin bounds the attempts to open a call's session in the log: an edge waits for 28 s until a bridge has taken
// the request. The response may come meanwhile, and needs no log.
const openWithin = 20 * time.Second

// openOnce opens the session in the log, or waits for earlier attempts, which it does not repeat. The
// caller holds the lock, which openOnce releases meanwhile.
func (h *Session) openOnce(d *OnDemand) {
	switch {
	case d.tried != nil:
		d.mu.Unlock()
		<-d.tried
		d.mu.Lock()
	case !d.opened:
		d.tried = make(chan struct{})
		d.failed = h.open(d)
		close(d.tried)
	}
}

// open opens the session in the log, and begins to answer for it. The caller holds the lock, which open releases
// for the attempts.
func (h *Session) open(d *OnDemand) error {
	s := h.Host
	data, err := json.Marshal(d.meta)
	if err != nil {
		return err
	}
	rec := NewRecord(d.asked, data)
	rec.Life = h.Life
	leave, err := s.CallLimits.Enter(rec)
	if err != nil {
		s.Trouble("calls", "calls are not in the log, and are lost with their connections: they begin while less than half of --max-sessions and --max-metadata-bytes is taken", slog.Any("error", err))
		return errors.Join(errLimit, err)
	}
	defer leave()
	d.opened = true // also if the log does not answer
	d.mu.Unlock()
	defer d.mu.Lock()
	ctx, cancel := context.WithTimeout(h.Ctx, openWithin)
	defer cancel()
	if _, err := s.CreateSession(ctx, rec); err != nil {
		if h.Ctx.Err() == nil {
			s.Trouble("session", "a session is not made", slog.String("session", h.Name), slog.Any("error", err))
		}
		return err
	}
	return h.Hold(ctx)
}

// settle waits for the attempts to open the session, if there are any. They end with the session.
func (d *OnDemand) settle() {
	d.mu.Lock()
	tried := d.tried
	d.mu.Unlock()
	if tried != nil {
		<-tried
	}
}

// errLimit is joined to the reason why a session may not be opened.
var errLimit = errors.New("too many sessions")

// notOpened returns the answer to a client whose session is not in the log.
func (d *OnDemand) notOpened() rpc.Answer {
	if !errors.Is(d.failed, errLimit) {
		return upstream.OutcomeUnknown(begun + "its response cannot be stored now")
	}
	a := upstream.Busy(d.failed.Error())
	a.Status = http.StatusTooManyRequests
	return a
}

// begun is the beginning of the error for a request that may have reached the MCP server and has no response.
const begun = "the MCP server may have begun the request, and "

// NewRecord returns the record of the session that a call opens.
func NewRecord(c rpc.Ask, metadata json.RawMessage) session.Record {
	rec := session.New(c.Session, c.Owner, metadata, time.Now())
	if c.Owner == "" {
		rec.Client = c.Client
	}
	return rec
}
