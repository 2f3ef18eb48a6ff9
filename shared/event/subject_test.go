package event_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"pgregory.net/rapid"

	"rejoin/shared/event"
)

func TestSubjects(t *testing.T) {
	for text, subject := range map[string]event.Subject{
		"mcp.3.s1.tools":        {Partition: 3, Session: "s1", Stream: "tools"},
		"mcp.0.a=2Eb.=2A":       {Session: "a.b", Stream: "*"},
		"mcp.15.s.=close":       {Partition: 15, Session: "s", Kind: event.Close},
		"mcp.15.s.=clear":       {Partition: 15, Session: "s", Kind: event.Clear},
		"mcp.15.s.tools=close":  {Partition: 15, Session: "s", Stream: "tools", Kind: event.Close},
		"mcp.15.s.=3Dclose":     {Partition: 15, Session: "s", Stream: "=close"},
		"mcp.1.s.a=2Fb=clear":   {Partition: 1, Session: "s", Stream: "a/b", Kind: event.Clear},
		"mcp.1.s.close=3Dclose": {Partition: 1, Session: "s", Stream: "close=close"},
	} {
		if got := subject.String(); got != text {
			t.Errorf("%+v.String() = %q, want %q", subject, got, text)
		}
		if got, err := event.ParseSubject(text); err != nil || got != subject {
			t.Errorf("ParseSubject(%q) = %+v, %v, want %+v", text, got, err, subject)
		}
	}
	for _, text := range []string{
		"", "mcp", "mcp.", "mcp.0", "mcp.0.s", "mcp.0.s.", "mcp.x.s.t", "mcp.01.s.t", "mcp.-1.s.t", "mcp.0.s.t.u",
		"mcp.0..t", "mcp.0.=2A.t", "mcp.0.s.=close=close", "mcp.0.s.=CLOSE", "MCP.0.s.t", "mcp.+1.s.t", "mcp.0.=close.t",
	} {
		if s, err := event.ParseSubject(text); !errors.Is(err, event.ErrInvalidSubject) {
			t.Errorf("ParseSubject(%q) = %+v, %v, want ErrInvalidSubject", text, s, err)
		}
	}
}

// The server's own mapping must send a publisher's message to the partition that
// this package computes, or direct publishers and ingest would disagree.
func TestPartitionIsTheServersOwnMapping(t *testing.T) {
	for _, n := range []int{1, 2, 16, 100} {
		mapping, err := server.NewSubjectTransform("in.*.*", fmt.Sprintf("mcp.{{partition(%d,1)}}.{{wildcard(1)}}.{{wildcard(2)}}", n))
		if err != nil {
			t.Fatal(err)
		}
		rapid.Check(t, func(t *rapid.T) {
			session := rapid.StringMatching(`[!-~]{1,128}`).Filter(func(s string) bool { return event.CheckSession(s) == nil }).Draw(t, "session")
			mapped, err := mapping.Match("in." + event.Token(session) + ".st")
			if err != nil {
				t.Fatal(err)
			}
			if want := "mcp." + strconv.Itoa(event.Partition(session, n)) + "." + event.Token(session) + ".st"; mapped != want {
				t.Fatalf("the server maps to %q, Partition says %q", mapped, want)
			}
		})
	}
}

func FuzzParseSubject(f *testing.F) {
	for _, s := range []string{"mcp.0.s.t", "mcp.1.s.=close", "mcp.1.s.t=clear", "mcp.1.=2E.t"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := event.ParseSubject(text)
		if err != nil {
			return
		}
		if s.String() != text {
			t.Fatalf("ParseSubject(%q) = %+v, which prints as %q", text, s, s.String())
		}
		if strings.ContainsAny(s.Session+s.Stream, " \r\n\x00") {
			t.Fatalf("%q holds a name with control characters", text)
		}
	})
}
