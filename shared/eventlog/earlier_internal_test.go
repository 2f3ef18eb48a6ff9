package eventlog

import (
	"errors"
	"math"
	"reflect"
	"testing"
)

const openEnd = uint64(math.MaxUint64)

func TestEarlierLimitsSayWhatTheNewOneDoesNot(t *testing.T) {
	for name, tt := range map[string]struct {
		list     []Earlier
		from, to int64
		first    uint64
		want     []Earlier
	}{
		"larger":                  {nil, 5, 10, 1, []Earlier{{5, openEnd}}},
		"none any more":           {nil, 5, -1, 1, []Earlier{{5, openEnd}}},
		"smaller":                 {nil, 10, 5, 1, []Earlier{{0, openEnd}}},
		"one where was none":      {nil, -1, 5, 1, []Earlier{{0, openEnd}}},
		"the same":                {[]Earlier{{3, 9}}, 5, 5, 1, []Earlier{{3, 9}}},
		"larger again":            {[]Earlier{{5, 9}}, 10, 20, 1, []Earlier{{5, 9}, {10, openEnd}}},
		"smaller than an earlier": {[]Earlier{{5, 9}, {10, 20}}, 30, 7, 1, []Earlier{{0, openEnd}}},
		"larger after a smaller":  {[]Earlier{{0, 9}, {5, 20}}, 7, 10, 1, []Earlier{{0, 9}, {5, 20}, {7, openEnd}}},
		"as small as an earlier":  {[]Earlier{{5, 9}, {10, 20}}, 10, 10, 1, []Earlier{{5, 9}}},
		"long gone":               {[]Earlier{{5, 9}, {10, 20}}, 30, 40, 10, []Earlier{{10, 20}, {30, openEnd}}},
		"cut off twice":           {[]Earlier{{5, openEnd}}, 10, 20, 1, []Earlier{{5, openEnd}}},
	} {
		if got := earlierDuring(tt.list, tt.from, tt.to, tt.first); !reflect.DeepEqual(got, tt.want) && len(got)+len(tt.want) > 0 {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	if got := ended([]Earlier{{5, 9}, {10, openEnd}, {20, openEnd}}, 30); !reflect.DeepEqual(got, []Earlier{{5, 9}, {10, 30}}) {
		t.Errorf("ended: %v", got)
	}
	var many []Earlier
	for n := range int64(maxEarlier + 2) {
		many = append(many, Earlier{n + 1, uint64(n + 1)})
	}
	if got := tidyEarlier(many); len(got) != maxEarlier || got[0] != (Earlier{1, 3}) || got[1] != (Earlier{4, 4}) {
		t.Errorf("too many become %v", got)
	}
}

func TestEarlierLimitsAreWrittenAndRead(t *testing.T) {
	for text, list := range map[string][]Earlier{
		"":              nil,
		"5:9":           {{5, 9}},
		"0:9,3:":        {{0, 9}, {3, openEnd}},
		"5:0,10:20,30:": {{5, 0}, {10, 20}, {30, openEnd}},
	} {
		if got, err := parseEarlier(text); err != nil || !reflect.DeepEqual(got, list) || formatEarlier(list) != text {
			t.Errorf("%q is read as %v, %v and written as %q", text, got, err, formatEarlier(list))
		}
	}
	for _, text := range []string{"5", "5:9,", "-1:1", "a:1", "1:a", ":1", "5:-1"} {
		if _, err := parseEarlier(text); !errors.Is(err, ErrMismatch) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
