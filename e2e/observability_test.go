package e2e

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v2"
	"rejoin/shared/must"
)

// observability is the folder under test.
const observability = "../deploy/observability/"

// rule is one of rules.yml.
type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

// readRules returns the rules of all groups.
func readRules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	must.NoError(t, yaml.UnmarshalStrict(must.Value(os.ReadFile(observability+"rules.yml"))(t), &file))
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// asked checks expressions against the metrics that there are.
type asked struct {
	t        *testing.T
	parser   parser.Parser
	table    map[string]documented
	recorded map[string]bool
	used     map[string]bool // metrics of the table
}

func newAsked(t *testing.T) *asked {
	t.Helper()
	a := &asked{t: t, parser: parser.NewParser(parser.Options{}), table: metricsTable(t), recorded: map[string]bool{}, used: map[string]bool{}}
	for _, r := range readRules(t) {
		if r.Record != "" {
			a.recorded[r.Record] = true
		}
	}
	return a
}

var (
	suffix   = regexp.MustCompile(`_(bucket|sum|count)$`)
	anyName  = regexp.MustCompile(`^[a-z_:][a-z0-9_:]*$`)
	runtimes = regexp.MustCompile(`^(go|process)_`)
)

// expr checks one expression; where is for the message.
func (a *asked) expr(where, text string) {
	a.t.Helper()
	parsed, err := a.parser.ParseExpr(text)
	if err != nil {
		a.t.Errorf("%s: %v", where, err)
		return
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok {
			a.selector(where, s)
		}
		return nil
	})
}

// selector checks that there are series of these names with these labels.
func (a *asked) selector(where string, s *parser.VectorSelector) {
	a.t.Helper()
	rows := a.rows(where, s)
	for _, m := range s.LabelMatchers {
		if m.Name == model.MetricNameLabel || m.Name == "instance" || m.Name == "job" {
			continue
		}
		for name, row := range rows {
			if !slices.Contains(row.labels, m.Name) {
				a.t.Errorf("%s asks for %s of %s, which has the labels %v", where, m.Name, name, row.labels)
				continue
			}
			for value := range strings.SplitSeq(m.Value, "|") {
				if m.Name != "code" && !row.values[value] {
					a.t.Errorf("%s asks for %s=%q of %s, which it does not have", where, m.Name, value, name)
				}
			}
		}
	}
}

// rows returns the rows of the table that a selector is about.
func (a *asked) rows(where string, s *parser.VectorSelector) map[string]documented {
	a.t.Helper()
	rows := map[string]documented{}
	for _, m := range s.LabelMatchers {
		if m.Name != model.MetricNameLabel {
			continue
		}
		for name, row := range a.table {
			base := m.Value
			if row.kind == "histogram" {
				base = suffix.ReplaceAllString(base, "")
			}
			if m.Type == labels.MatchEqual && name == base || m.Type == labels.MatchRegexp && m.Matches(name) {
				rows[name] = row
				a.used[name] = true
			}
		}
		known := m.Value == "up" || m.Value == "ALERTS" || a.recorded[m.Value] || runtimes.MatchString(m.Value)
		if len(rows) == 0 && !known {
			a.t.Errorf("%s asks for %s, which no service has", where, m.Value)
		}
	}
	return rows
}

// Every rule can be read and uses existing metrics; every alert has a summary, and an
// action; the pages and the actions name existing alerts.
func TestObservability_RulesUseExistingMetrics(t *testing.T) {
	a := newAsked(t)
	alerts := map[string]bool{}
	for _, r := range readRules(t) {
		a.expr(r.Record+r.Alert, r.Expr)
		if r.Alert == "" {
			if !anyName.MatchString(r.Record) || strings.Count(r.Record, ":") != 2 {
				t.Errorf("%q is no name of the form level:metric:operation", r.Record)
			}
			continue
		}
		if alerts[r.Alert] {
			t.Errorf("two alerts are called %s", r.Alert)
		}
		alerts[r.Alert] = true
		if r.Annotations["summary"] == "" || r.Annotations["action"] == "" {
			t.Errorf("%s has the annotations %v", r.Alert, r.Annotations)
		}
		if s := r.Labels["severity"]; s != "warning" && s != "critical" {
			t.Errorf("%s has the severity %q", r.Alert, s)
		}
	}
	for _, file := range []string{observability + "rules.yml", "../docs/metrics.md", "../docs/operations.md"} {
		for _, name := range regexp.MustCompile(`\bRejoin[A-Z]\w+`).FindAllString(string(must.Value(os.ReadFile(file))(t)), -1) {
			if !alerts[name] {
				t.Errorf("%s names the alert %s, which is not there", file, name)
			}
		}
	}
}

// promtool is no part of this, but its test file is complete: it has each alert once where
// it has to fire and once where it must not.
func TestObservability_EveryAlertIsTestedBothWays(t *testing.T) {
	var tests struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	must.NoError(t, yaml.Unmarshal(must.Value(os.ReadFile(observability+"rules_test.yml"))(t), &tests))
	fires, keeps := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, a := range test.AlertRuleTest {
			if len(a.ExpAlerts) > 0 {
				fires[a.Alertname] = true
			} else {
				keeps[a.Alertname] = true
			}
		}
	}
	for _, r := range readRules(t) {
		if r.Alert != "" && (!fires[r.Alert] || !keeps[r.Alert]) {
			t.Errorf("%s is tried where it fires (%t) and where it does not (%t)", r.Alert, fires[r.Alert], keeps[r.Alert])
		}
	}
}

// panel has the fields of a panel that are checked.
type panel struct {
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Targets                  []struct{ Expr string }
	FieldConfig              struct {
		Defaults struct {
			Unit  string
			Color struct{ Mode string }
		}
	}
	Options struct{ YAxis struct{ Unit string } }
}

// The dashboard uses existing metrics, every panel has a description and a unit, none
// lies on another, and no metric of a service is left out.
func TestObservability_DashboardShowsEveryMetric(t *testing.T) {
	data := must.Value(os.ReadFile(observability + "grafana/dashboards/rejoin.json"))(t)
	var dashboard struct {
		Panels      []panel
		Annotations struct{ List []struct{ Expr string } }
	}
	must.NoError(t, json.Unmarshal(data, &dashboard))
	a := newAsked(t)
	variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")
	taken := map[[2]int]string{}
	titles := map[string]bool{}
	for _, p := range dashboard.Panels {
		if titles[p.Title] {
			t.Errorf("two panels are called %s", p.Title)
		}
		titles[p.Title] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s lies on %s, or beyond the edge, at %d,%d", p.Title, other, x, y)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("the panel %q of type %s has the description %q and %d targets", p.Title, p.Type, p.Description, len(p.Targets))
		}
		if unitless := p.Type == "table" || p.Type == "state-timeline"; !unitless && p.FieldConfig.Defaults.Unit+p.Options.YAxis.Unit == "" {
			t.Errorf("%s has no unit", p.Title)
		}
		// By thresholds Grafana merges states into "< 1" and "1+", regardless of their mappings.
		if p.Type == "state-timeline" && p.FieldConfig.Defaults.Color.Mode == "thresholds" {
			t.Errorf("%s shows thresholds, not its states' names", p.Title)
		}
		for _, target := range p.Targets {
			a.expr(p.Title, variables.Replace(target.Expr))
		}
	}
	for _, annotation := range dashboard.Annotations.List {
		if annotation.Expr != "" {
			a.expr("an annotation", variables.Replace(annotation.Expr))
		}
	}
	for name := range a.table {
		if !a.used[name] {
			t.Errorf("%s is on no panel", name)
		}
	}
}

// Everything that the overlay publishes is for this machine only, and its files are there.
func TestObservability_ListensOnLoopbackOnly(t *testing.T) {
	var overlay struct {
		Services map[string]struct{ Ports []string }
		Configs  map[string]struct{ File string }
	}
	must.NoError(t, yaml.Unmarshal(must.Value(os.ReadFile(observability+"compose.yaml"))(t), &overlay))
	for name, service := range overlay.Services {
		if len(service.Ports) == 0 {
			t.Errorf("%s is not published", name)
		}
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes %s", name, port)
			}
		}
	}
	if len(overlay.Services) != 2 || len(overlay.Configs) == 0 {
		t.Errorf("there are %d services and %d configs", len(overlay.Services), len(overlay.Configs))
	}
	for name, config := range overlay.Configs {
		if _, err := os.Stat("../deploy/" + config.File); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
