package event_test

import (
	"errors"
	"strings"
	"testing"

	"rejoin/shared/event"
)

func TestSessionNames(t *testing.T) {
	legal := []string{"a", "0", "~", "!", "a.b", "...", "a*", "**", "=2A", "a/b", "%2F", "a_b-c", strings.Repeat("x", 128)}
	illegal := []string{"", ".", "..", "*", " ", "a b", "a\n", "\x7f", "é", "\x00", strings.Repeat("x", 129)}
	for _, name := range legal {
		if err := event.CheckSession(name); err != nil {
			t.Errorf("CheckSession(%q) = %v, want nil", name, err)
		}
	}
	for _, name := range illegal {
		if err := event.CheckSession(name); !errors.Is(err, event.ErrInvalidName) {
			t.Errorf("CheckSession(%q) = %v, want ErrInvalidName", name, err)
		}
	}
	if err := event.CheckStream("*"); err != nil {
		t.Errorf("a stream may be named *: %v", err)
	}
}

func TestToken_RoundTrip(t *testing.T) {
	for name, token := range map[string]string{
		"tools":  "tools",
		"a.b":    "a=2Eb",
		"*":      "=2A",
		"=":      "=3D",
		"a_b-c9": "a_b-c9",
		"a/b>c":  "a=2Fb=3Ec",
	} {
		if got := event.Token(name); got != token {
			t.Errorf("Token(%q) = %q, want %q", name, got, token)
		}
		if got, err := event.StreamName(token); err != nil || got != name {
			t.Errorf("StreamName(%q) = %q, %v, want %q", token, got, err, name)
		}
	}
	for _, token := range []string{
		"a!=2A", "=2A>", "a=", "a=2", "a=2g", "a==2A", "", "=", "=2", "=2a", "=41", "=close", "=clear", "a.b", "*", ">", "=20", "=2E", "=2E=2E", "é",
	} {
		if name, err := event.StreamName(token); !errors.Is(err, event.ErrInvalidToken) {
			t.Errorf("StreamName(%q) = %q, %v, want ErrInvalidToken", token, name, err)
		}
	}
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"a", "=2A", "a.b", "=", "=close", "\xff", "*"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if event.CheckStream(s) == nil {
			name, err := event.StreamName(event.Token(s))
			if err != nil || name != s {
				t.Fatalf("StreamName(Token(%q)) = %q, %v", s, name, err)
			}
		}
		if name, err := event.StreamName(s); err == nil && event.Token(name) != s {
			t.Fatalf("token %q is accepted but is not the token of its name %q", s, name)
		}
	})
}
