package event_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"rejoin/shared/event"
)

func TestValidJSON_DeepNesting(t *testing.T) {
	for _, levels := range []int{1, 9_000, 11_000, 1 << 20} {
		text := []byte(strings.Repeat("[", levels) + strings.Repeat("]", levels))
		if got, want := event.ValidJSON(text), json.Valid(text); got != want {
			t.Errorf("%d levels: %t, encoding/json says %t", levels, got, want)
		}
	}
}

// A message is read inside an envelope too, by encoding/json.
func TestCheckValue_Levels(t *testing.T) {
	nested := func(open, inner, end string, levels int) []byte {
		return []byte(strings.Repeat(open, levels) + inner + strings.Repeat(end, levels))
	}
	brackets := strings.Repeat("[{", event.MaxLevels)
	for name, tt := range map[string]struct {
		data []byte
		ok   bool
	}{
		"arrays":               {nested("[", "", "]", event.MaxLevels), true},
		"arrays, too deep":     {nested("[", "", "]", event.MaxLevels+1), false},
		"objects":              {nested(`{"a":`, "1", "}", event.MaxLevels), true},
		"objects, too deep":    {nested(`{"a":`, "1", "}", event.MaxLevels+1), false},
		"far too deep":         {nested("[", "", "]", 1<<20), false},
		"one after the other":  {nested("[", "[]"+strings.Repeat(",[{}]", event.MaxLevels), "]", event.MaxLevels-2), true},
		"in a string":          {[]byte(`["` + brackets + `"]`), true},
		"in a string, escaped": {[]byte(`["\\\"` + brackets + `"]`), true},
		"no JSON":              {[]byte(brackets), false},
		"no UTF-8":             {[]byte("\"\xff\""), false},
	} {
		if err := event.CheckValue(tt.data); (err == nil) != tt.ok || err != nil && !errors.Is(err, event.ErrInvalidJSON) {
			t.Errorf("%s: %v", name, err)
		}
		if envelope := slices.Concat([]byte(`{"message":`), tt.data, []byte("}")); tt.ok && !json.Valid(envelope) {
			t.Errorf("%s: it cannot be read inside an envelope", name)
		}
	}
}

// FuzzValidJSON compares with encoding/json.
func FuzzValidJSON(f *testing.F) {
	for _, s := range []string{
		`{}`, ` {"a":1,"a":[true,null,-0.5e+3]} `, `"\ud800\u00e9\/"`, "\"\xff\"", "\"\x00\"", "\"\x7f\"", `01`, `1.`, `+1`, `{"a":1,}`, `[1 2]`, `nul`, ``, " \t\r\n",
		"\ufeff{}", "\u00a0{}", `{"\ud800":1,"\ud800":2}`, "{\"\xff\":1}", `"\x"`, `"\u12g4"`, `{"a"}`, `{1:2}`, `[]]`, `{}{}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, want := event.ValidJSON(data), json.Valid(data); got != want {
			t.Fatalf("%q: %t, encoding/json says %t", data, got, want)
		}
		if got, want := event.CheckValue(data) == nil, json.Valid(data) && utf8.Valid(data) && json.Valid(slices.Concat([]byte("["), data, []byte("]"))); got != want {
			t.Fatalf("%q: %t as a message, encoding/json says %t in an array", data, got, want)
		}
	})
}

func BenchmarkValidJSON(b *testing.B) {
	m := []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + strings.Repeat("x", 440) + `"}}`)
	b.SetBytes(int64(len(m)))
	b.ReportAllocs()
	for b.Loop() {
		if !event.ValidJSON(m) {
			b.Fatal("not valid")
		}
	}
}

func TestMustJSON_PanicsWhereJSONHasNoForm(t *testing.T) {
	if got := string(event.MustJSON([]string{"a\n", "b"})); got != `["a\n","b"]` {
		t.Errorf("got %s", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("a channel was encoded")
		}
	}()
	event.MustJSON(make(chan int))
}

// Escapes of HTML make six bytes of one: a message that is within its limit must stay within it.
func TestMustJSON_DoesNotGrow(t *testing.T) {
	const text = `"<a href='?x&y'>"`
	if got := string(event.MustJSON(json.RawMessage(text))); got != text {
		t.Errorf("JSON that was read: got %s", got)
	}
	if got := string(event.MustJSON("<&>")); got != `"<&>"` {
		t.Errorf("a string: got %s", got)
	}
}
