package e2e

import (
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"rejoin/shared/must"
)

// documented is a row of the table in docs/metrics.md.
type documented struct {
	kind   string
	labels []string
	values map[string]bool // the words in `` in its text
}

var quoted = regexp.MustCompile("`([^`]+)`")

// metricsTable reads the table.
func metricsTable(t *testing.T) map[string]documented {
	t.Helper()
	data := must.Value(os.ReadFile("../docs/metrics.md"))(t)
	table := map[string]documented{}
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "| `rejoin_") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| \n"), "|")
		if len(cells) < 5 {
			cells = append(cells, "") // nothing to be done
		}
		if len(cells) != 5 {
			t.Fatalf("%d cells: %s", len(cells), line)
		}
		name := quoted.FindStringSubmatch(cells[0])[1]
		if _, ok := table[name]; ok {
			t.Errorf("%s is there twice", name)
		}
		row := documented{kind: strings.TrimSpace(cells[1]), values: map[string]bool{}}
		for _, text := range quoted.FindAllStringSubmatch(cells[3]+cells[4], -1) {
			row.values[text[1]] = true
		}
		for _, label := range quoted.FindAllStringSubmatch(cells[2], -1) {
			row.labels = append(row.labels, label[1])
		}
		slices.Sort(row.labels)
		table[name] = row
	}
	return table
}

// The table of docs/metrics.md has every metric of every service, with its type, its
// labels and their values, and no other.
func TestMetrics_TableIsComplete(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--upstream=http://127.0.0.1:9/mcp")
	for _, flag := range []string{"--edge-addr", "--ingest-addr", "--janitor-addr"} {
		do(t, http.MethodGet, p.url(flag)+"/nothing", "") // the times of a method come with its first request
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families := must.Value(parser.TextToMetricFamilies(strings.NewReader(do(t, http.MethodGet, p.url("--admin-addr")+"/metrics", "").body)))(t)
	table := metricsTable(t)
	for name, family := range families {
		if !strings.HasPrefix(name, "rejoin_") {
			if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
				t.Errorf("%s is neither Rejoin's nor the runtime's nor the process'", name)
			}
			continue
		}
		row, ok := table[name]
		if !ok {
			t.Errorf("%s is not in the table", name)
			continue
		}
		compare(t, family, row)
	}
	for name := range table {
		if families[name] == nil {
			t.Errorf("%s is in the table, and no service has it", name)
		}
	}
}

func compare(t *testing.T, family *dto.MetricFamily, row documented) {
	t.Helper()
	name := family.GetName()
	if kind := strings.ToLower(family.GetType().String()); kind != row.kind {
		t.Errorf("%s is a %s, and a %s in the table", name, kind, row.kind)
	}
	labels := map[string]bool{}
	for _, m := range family.GetMetric() {
		for _, label := range m.GetLabel() {
			labels[label.GetName()] = true
			if label.GetName() != "method" && label.GetName() != "code" && !row.values[label.GetValue()] {
				t.Errorf("%s has %s=%q, and the table does not say what that is", name, label.GetName(), label.GetValue())
			}
		}
	}
	if got := slices.Sorted(maps.Keys(labels)); !slices.Equal(got, row.labels) {
		t.Errorf("%s has the labels %v, and %v in the table", name, got, row.labels)
	}
}
