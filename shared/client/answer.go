package client

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxAnswerLine bounds a line of an answer. The last one is the longest: it lists
// up to 1,000 errors.
const maxAnswerLine = 4 << 20

// answerLine is a line of the answer to a request: the outcome of one message, or
// at the end the summary.
type answerLine struct {
	Index     *int   `json:"index"`
	ID        string `json:"id"`
	Duplicate bool   `json:"duplicate"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`

	Accepted *int `json:"accepted"`
	Stopped  *struct {
		Index  int    `json:"index"`
		Code   string `json:"code"`
		Detail string `json:"detail"`
	} `json:"stopped"`
}

// readAnswer reads the answer to a request: a line for each message, in order, and
// a summary. It sets the verdicts that the answer reports and leaves the others
// as they are. The error is the reason why the answer does not report all: it broke off, it
// is malformed, or the server stopped in the middle.
func readAnswer(r io.Reader, verdicts []verdict) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), maxAnswerLine)
	lines.Split(wholeLines)
	next := 0
	for lines.Scan() {
		var line answerLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("%w: a line of the answer cannot be read: %w", ErrProtocol, err)
		}
		switch {
		case line.Index == nil && line.Accepted != nil:
			return summary(line, verdicts, next)
		case line.Index == nil || *line.Index != next || next == len(verdicts):
			return fmt.Errorf("%w: the answer does not tell of message %d", ErrProtocol, next)
		}
		v, err := judge(line)
		if err != nil {
			return err
		}
		verdicts[next] = v
		next++
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// judge returns the verdict that a line reports of its message.
func judge(line answerLine) (verdict, error) {
	refusal := &Error{Code: line.Code, Detail: line.Detail}
	switch line.Code {
	case "":
		if line.ID == "" {
			return verdict{}, fmt.Errorf("%w: a message has neither an ID nor a code", ErrProtocol)
		}
		return verdict{kind: stored, stored: Stored{ID: line.ID, Duplicate: line.Duplicate}}, nil
	case codeUnavailable, codeStorageFull:
		return verdict{kind: untried, err: refusal}, nil
	case codePublishUnknown, codeInternal:
		return verdict{kind: unknown, err: refusal}, nil
	default:
		return verdict{kind: refused, err: refusal}, nil
	}
}

// summary reads the last line of an answer that has reported the first next messages.
func summary(line answerLine, verdicts []verdict, next int) error {
	stop := line.Stopped
	if stop == nil {
		if next < len(verdicts) {
			return fmt.Errorf("%w: the answer ends before message %d", ErrProtocol, next)
		}
		return nil
	}
	// A message's own line has precedence.
	from := max(stop.Index, next)
	if from > len(verdicts) {
		return fmt.Errorf("%w: the answer stops at message %d of %d", ErrProtocol, stop.Index, len(verdicts))
	}
	refusal := &Error{Code: stop.Code, Detail: stop.Detail}
	all(verdicts[from:], untried, refusal)
	return refusal
}

// errCut is returned when an answer ends inside a line.
var errCut = errors.New("the answer ends inside a line")

// wholeLines splits at line ends. A line without an end may have been cut and does
// not count.
func wholeLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, errCut
	}
	return 0, nil, nil
}
