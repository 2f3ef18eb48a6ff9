package measure

import (
	"os"
	"strings"
	"testing"

	"rejoin/shared/leaktest"
)

// A ratio is taken within a repetition: the median of ratios is not the ratio of medians.
func TestRatio_WithinARepetition(t *testing.T) {
	r := newReport("many", "test")
	for _, v := range [][2]float64{{10, 1}, {2, 2}, {9, 3}} {
		var f Figures
		f.Add("cpu_us", v[0])
		f.Add("raw_cpu_us", v[1])
		f.Ratio("cpu_vs_raw", "cpu_us", "raw_cpu_us")
		f.Ratio("p99_vs_raw", "p99_ms", "raw_p99_ms") // not measured
		r.add(f)
	}
	if v, ok := r.median("cpu_vs_raw"); !ok || v != 3 {
		t.Errorf("the median is %v, want 3", v)
	}
	var out strings.Builder
	r.print(&out)
	for _, want := range []string{"BENCH many cpu_us 9.000\n", "BENCH many raw_cpu_us 2.000\n", "BENCH many cpu_vs_raw 3.000\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	out.Reset()
	PrintVerdicts(&out, r.judge())
	for _, want := range []string{"many  cpu_vs_raw  3.000   ≤ 2.5  no\n", "many  p99_vs_raw  -       ≤ 10   not measured\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestBars_AtTheLimit(t *testing.T) {
	for _, c := range []struct {
		least bool
		value float64
		holds bool
	}{{true, 6, true}, {true, 5.9, false}, {false, 6, true}, {false, 6.1, false}} {
		if v := (Verdict{bar: Bar{least: c.least, limit: 6}, value: c.value, known: true}); v.holds() != c.holds {
			t.Errorf("%+v holds: %v", c, v.holds())
		}
	}
}

func TestQuantile_WithinABucket(t *testing.T) {
	var h, other Histogram
	for i := range 1000 {
		at := &h
		if i%2 == 0 {
			at = &other
		}
		at.Add(int64(i+1) * 1_000_000)
	}
	h.Merge(&other)
	for q, want := range map[float64]float64{0.5: 500, 0.99: 990, 0.999: 999} {
		if got := h.quantile(q); got < want || got > want*1.04 {
			t.Errorf("the %v quantile is %v ms, want %v or a little more", q, got, want)
		}
	}
	if h.Total != 1000 {
		t.Errorf("%d durations", h.Total)
	}
}

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }
