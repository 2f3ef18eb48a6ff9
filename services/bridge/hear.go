package bridge

import (
	"bytes"
	"encoding/json"
	"errors"

	"rejoin/services/bridge/upstream"

	"rejoin/shared/rpc"
)

// read stores what the process writes, until its output ends.
func (u *stdio) read() {
	defer close(u.over)
	l := upstream.NewLines(&upstream.Leftover{F: u.process.Stdout}, u.service.maxBytes())
	var own *call
	for {
		var skim upstream.Skimmer
		line, err := l.Next(skim.Add)
		if errors.Is(err, upstream.ErrTooLarge) {
			u.service.metrics.dropped.WithLabelValues(dropTooLarge).Inc()
			id := skim.Response()
			if id == nil {
				continue
			}
			line, err = rpc.ErrorMessage(id, rpc.CodeInternal, upstream.ErrTooLarge.Error(), nil), nil
		}
		if err != nil {
			return
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		all, _, err := rpc.Messages(bytes.Clone(line))
		if err != nil {
			all = []json.RawMessage{bytes.Clone(line)}
		}
		for _, data := range all {
			if u.isFirst(data) {
				continue
			}
			select {
			case <-u.ready:
			case <-u.service.life.Done():
				return
			}
			if own == nil {
				own = newStandalone(u.held)
			}
			if u.store(data, own) != nil {
				return
			}
		}
	}
}

// isFirst hands the response to initialize over, and drops what comes before.
func (u *stdio) isFirst(data []byte) bool {
	u.mu.Lock()
	opening := u.opening
	u.mu.Unlock()
	m, err := rpc.ParseMessage(data)
	if opening == "" || err != nil || !m.IsResponse() || upstream.IDKey(m.ID) != opening {
		return false
	}
	u.mu.Lock()
	u.opening = ""
	u.mu.Unlock()
	u.first <- data
	return true
}

// store stores a message on the stream that it belongs to. An error ends the reading.
func (u *stdio) store(data []byte, own *call) error {
	m, err := rpc.ParseMessage(data)
	if err != nil {
		own.drop(dropInvalid, err)
		return nil
	}
	s := u.route(m)
	if s == nil {
		if m.IsResponse() {
			own.drop(dropLate, errUnknownRequest)
			return nil
		}
		return goOnAfter(own.take(item{data: data}))
	}
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.ended || s.call.done() {
		own.drop(dropLate, errUnknownRequest)
		return nil
	}
	s.patience.came()
	defer s.patience.wait()
	err = s.take(item{data: data})
	if s.call.done() {
		close(s.done)
	}
	return goOnAfter(err)
}

// goOnAfter leaves out errors that are about one stream alone.
func goOnAfter(err error) error {
	if errors.Is(err, errClosed) {
		return nil
	}
	return err
}

// route returns the call that a message belongs to; nil when it is about none, or about
// one that is over.
func (u *stdio) route(m rpc.Message) *spoken {
	u.mu.Lock()
	defer u.mu.Unlock()
	if m.IsResponse() {
		for _, s := range u.calls {
			if s.keys[upstream.IDKey(m.ID)] {
				return s
			}
		}
		return nil
	}
	if token := m.Param("progressToken"); token != nil {
		for _, s := range u.calls {
			if s.tokens[upstream.IDKey(token)] {
				return s
			}
		}
	}
	var only *spoken
	for _, s := range u.calls {
		switch {
		case s.call.done(): // it is about to be forgotten
		case only != nil:
			return nil
		default:
			only = s
		}
	}
	return only
}
