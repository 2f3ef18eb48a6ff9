package client

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

const (
	lineStored    = `{"index":%d,"id":"s_0000000_%[1]d","duplicate":false}` + "\n"
	lineDuplicate = `{"index":%d,"id":"s_0000000_%[1]d","duplicate":true}` + "\n"
	lineRefused   = `{"index":%d,"code":"invalid_message","detail":"why"}` + "\n"
	lineUnknown   = `{"index":%d,"code":"publish_unknown"}` + "\n"
	lineFull      = `{"index":%d,"code":"storage_full"}` + "\n"
	lineSummary   = `{"accepted":1,"duplicates":0,"unknown":0,"lastId":null,"errors":[],"stopped":null}` + "\n"
	lineStopped   = `{"accepted":0,"duplicates":0,"unknown":0,"lastId":null,"errors":[],"stopped":{"index":%d,"code":"unavailable"}}` + "\n"
)

// answerOf writes lines, each with the index that is its turn.
func answerOf(lines ...string) string {
	var b strings.Builder
	for i, line := range lines {
		if strings.Contains(line, "%") {
			line = fmt.Sprintf(line, i)
		}
		b.WriteString(line)
	}
	return b.String()
}

// kinds reads an answer about n messages with unknown outcomes.
func kinds(r io.Reader, n int) ([]verdictKind, error) {
	verdicts := make([]verdict, n)
	all(verdicts, unknown, errEnded)
	err := readAnswer(r, verdicts)
	var kinds []verdictKind
	for _, v := range verdicts {
		kinds = append(kinds, v.kind)
	}
	return kinds, err
}

func TestAnswer_PartialAnswer(t *testing.T) {
	is := func(kinds ...verdictKind) []verdictKind { return kinds }
	for name, tt := range map[string]struct {
		answer string
		want   []verdictKind
		err    error
	}{
		"everything":               {answerOf(lineStored, lineDuplicate, lineRefused, lineSummary), is(stored, stored, refused), nil},
		"to be repeated":           {answerOf(lineUnknown, lineFull, lineStored, lineSummary), is(unknown, untried, stored), nil},
		"a bug of the server's":    {answerOf(`{"index":0,"code":"internal"}`+"\n", lineStored, lineStored, lineSummary), is(unknown, stored, stored), nil},
		"no answer":                {"", is(unknown, unknown, unknown), io.ErrUnexpectedEOF},
		"cut behind a line":        {answerOf(lineStored), is(stored, unknown, unknown), io.ErrUnexpectedEOF},
		"cut in a line":            {answerOf(lineStored, lineStored[:20]), is(stored, unknown, unknown), errCut},
		"cut before a line's end":  {strings.TrimSuffix(answerOf(lineStored, lineStored), "\n"), is(stored, unknown, unknown), errCut},
		"no summary":               {answerOf(lineStored, lineStored, lineStored), is(stored, stored, stored), io.ErrUnexpectedEOF},
		"a summary too early":      {answerOf(lineStored, lineSummary), is(stored, unknown, unknown), ErrProtocol},
		"a line too many":          {answerOf(lineStored, lineStored, lineStored, lineStored), is(stored, stored, stored), ErrProtocol},
		"not its turn":             {answerOf(lineStored) + fmt.Sprintf(lineStored, 2), is(stored, unknown, unknown), ErrProtocol},
		"told twice":               {answerOf(lineStored) + answerOf(lineRefused), is(stored, unknown, unknown), ErrProtocol},
		"neither ID nor code":      {`{"index":0}` + "\n", is(unknown, unknown, unknown), ErrProtocol},
		"no JSON":                  {"503\n", is(unknown, unknown, unknown), ErrProtocol},
		"a line of another kind":   {"{}\n", is(unknown, unknown, unknown), ErrProtocol},
		"stopped beyond the end":   {answerOf(lineStored) + fmt.Sprintf(lineStopped, 9), is(stored, unknown, unknown), ErrProtocol},
		"stopped with a hole":      {answerOf(lineStored) + fmt.Sprintf(lineStopped, 2), is(stored, unknown, untried), nil},
		"stopped before it began":  {fmt.Sprintf(lineStopped, 0), is(untried, untried, untried), nil},
		"stopped, and below zero":  {answerOf(lineStored) + fmt.Sprintf(lineStopped, -5), is(stored, untried, untried), nil},
		"stopped at what was told": {answerOf(lineStored, lineUnknown) + fmt.Sprintf(lineStopped, 1), is(stored, unknown, untried), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := kinds(iotest.OneByteReader(strings.NewReader(tt.answer)), 3)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if _, stopped := errors.AsType[*Error](err); stopped {
				err = nil // which the verdicts report
			}
			if !errors.Is(err, tt.err) {
				t.Errorf("error is %v, want %v", err, tt.err)
			}
		})
	}
}

// FuzzAnswer reads any answer, whole and cut somewhere: it never panics, a cut
// answer never reports more messages than the whole one, and never other verdicts.
func FuzzAnswer(f *testing.F) {
	f.Add(answerOf(lineStored, lineDuplicate, lineRefused, lineSummary), uint16(30))
	f.Add(answerOf(lineUnknown, lineFull, lineStored)+fmt.Sprintf(lineStopped, 3), uint16(90))
	f.Add(`{"index":0,"id":1}`+"\n", uint16(3))
	f.Add(`{"index":1e0,"code":null}`+"\n", uint16(3))
	f.Add(fmt.Sprintf(lineStopped, -1), uint16(1000))
	f.Fuzz(func(t *testing.T, answer string, cut uint16) {
		whole, wholeErr := kinds(strings.NewReader(answer), 4)
		part, partErr := kinds(strings.NewReader(answer[:min(int(cut), len(answer))]), 4)
		for i := range whole {
			if part[i] != unknown && part[i] != whole[i] {
				t.Errorf("message %d is %d, and %d in the whole answer", i, part[i], whole[i])
			}
			if i > 0 && whole[i] == stored && !strings.Contains(answer, "\n") {
				t.Errorf("message %d is stored without a line", i)
			}
		}
		if wholeErr != nil && partErr == nil {
			t.Errorf("the whole answer fails with %v, a part of it does not", wholeErr)
		}
	})
}
