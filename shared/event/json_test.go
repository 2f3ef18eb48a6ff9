package event_test

import (
	"encoding/json"
	"strings"
	"testing"

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
	if got := string(event.MustJSON([]string{"a\n", "<"})); got != `["a\n","\u003c"]` {
		t.Errorf("got %s", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("a channel was encoded")
		}
	}()
	event.MustJSON(make(chan int))
}
