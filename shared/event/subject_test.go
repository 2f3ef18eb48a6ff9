package event_test

import (
	"errors"
	"strings"
	"testing"

	"rejoin/shared/event"
)

func TestSubjects(t *testing.T) {
	for text, subject := range map[string]event.Subject{
		"mcp.3.s1.l1.tools":        {Partition: 3, Session: "s1", Life: "l1", Stream: "tools"},
		"mcp.0.a=2Eb.=.=2A":        {Session: "a.b", Stream: "*"},
		"mcp.15.s.=open":           {Partition: 15, Session: "s", Kind: event.Open},
		"mcp.15.s.l.=end":          {Partition: 15, Session: "s", Life: "l", Kind: event.End},
		"mcp.15.s.=.=end":          {Partition: 15, Session: "s", Kind: event.End},
		"mcp.15.s.l.=seal":         {Partition: 15, Session: "s", Life: "l", Kind: event.Seal},
		"mcp.15.s.l.=clear":        {Partition: 15, Session: "s", Life: "l", Kind: event.Clear},
		"mcp.15.s.l.=end.tools":    {Partition: 15, Session: "s", Life: "l", Stream: "tools", Kind: event.End},
		"mcp.15.s.l.=birth.tools":  {Partition: 15, Session: "s", Life: "l", Stream: "tools", Kind: event.Birth},
		"mcp.15.s.l.=3Dend":        {Partition: 15, Session: "s", Life: "l", Stream: "=end"},
		"mcp.1.s.l.=clear.a=2Fb":   {Partition: 1, Session: "s", Life: "l", Stream: "a/b", Kind: event.Clear},
		"mcp.1.s.l.=birth.=3Dopen": {Partition: 1, Session: "s", Life: "l", Stream: "=open", Kind: event.Birth},
	} {
		if got := subject.String(); got != text {
			t.Errorf("%+v.String() = %q, want %q", subject, got, text)
		}
		if got, err := event.ParseSubject(text); err != nil || got != subject {
			t.Errorf("ParseSubject(%q) = %+v, %v, want %+v", text, got, err, subject)
		}
	}
	for _, text := range []string{
		"", "mcp", "mcp.", "mcp.0", "mcp.0.s", "mcp.0.s.", "mcp.0.s.t", "mcp.x.s.l.t", "mcp.01.s.l.t", "mcp.-1.s.l.t", "mcp.0.s.l.t.u",
		"mcp.0..l.t", "mcp.0.=2A.l.t", "mcp.0.s..t", "mcp.0.s.L.t", "mcp.0.s.l.=END", "MCP.0.s.l.t", "mcp.+1.s.l.t", "mcp.0.=open.l.t",
		"mcp.0.s.l.=birth", "mcp.0.s.l.=seal.t", "mcp.0.s.l.=open", "mcp.0.s.=open.t", "mcp.0.s.l.=end.", "mcp.0.s.l.=end.=end",
		event.GenerationSubject(0, "id"), "mcp.0.s.l.=end.t.u", "mcp.0.s.==.t", "mcp.0.s." + strings.Repeat("l", 33) + ".t", "mcp.0.s.=open.=end",
	} {
		if s, err := event.ParseSubject(text); !errors.Is(err, event.ErrInvalidSubject) {
			t.Errorf("ParseSubject(%q) = %+v, %v, want ErrInvalidSubject", text, s, err)
		}
	}
}

func TestGenerationSubject(t *testing.T) {
	if id, ok := event.ParseGenerationSubject(3, event.GenerationSubject(3, "ab7")); !ok || id != "ab7" {
		t.Errorf("%q, %v", id, ok)
	}
	for _, subject := range []string{event.GenerationSubject(30, "ab7"), event.GenerationSubject(3, ""), event.GenerationSubject(3, "a.b"), event.GenerationSubject(3, "a,b:1"), "mcp.3.s.=open"} {
		if id, ok := event.ParseGenerationSubject(3, subject); ok {
			t.Errorf("%s names %q", subject, id)
		}
	}
}

// The values are those of zlib.crc32 of Python, and of the converter crc32 of HAProxy.
func TestPartition(t *testing.T) {
	for name, want := range map[string]int{"demo": 0, "a/b": 12, "s=3 ü": 14} {
		if got := event.Partition(name, 16); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

func FuzzParseSubject(f *testing.F) {
	for _, s := range []string{"mcp.0.s.l.t", "mcp.1.s.l.=end", "mcp.1.s.=.=clear.t", "mcp.1.=2E.l.t", "mcp.1.s.=open"} {
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

func BenchmarkSubjectString(b *testing.B) {
	for name, s := range map[string]event.Subject{
		"message": {Partition: 3, Session: "8e41f0c2-2b5d-4f0e-9d1c-0a7f5f0f3f11", Life: "k3j9x2abqwer", Stream: "tools"},
		"end":     {Partition: 3, Session: "8e41f0c2-2b5d-4f0e-9d1c-0a7f5f0f3f11", Life: "k3j9x2abqwer", Stream: "tools", Kind: event.End},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = s.String()
			}
		})
	}
}
