package main

import (
	"os"
	"strings"
	"testing"

	"rejoin/bench/measure"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
)

func TestChoose_GroupOrName(t *testing.T) {
	for names, want := range map[string]string{
		"":                       "latency publish client fanout-100 fanout-1000 fanout-5000 many idle-9000 idle-18000 storm-window storm-log slow removal limits ledger mcp-calls mcp-modern mcp-sessions cold replicas scale-log scale-edges scale-janitors scale-streams",
		"fan-out,idle":           "fanout-100 fanout-1000 fanout-5000 idle-9000 idle-18000",
		"idle-18000 , idle":      "idle-9000 idle-18000",
		"storm,many":             "many storm-window storm-log",
		"slow,cold,storm-window": "storm-window slow cold",
	} {
		chosen := must.Value(choose(names))(t)
		var got []string
		for _, c := range chosen {
			got = append(got, c.Name)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%q chooses %q, want %q", names, s, want)
		}
	}
	for _, names := range []string{"fanout", "idle,", "Idle"} {
		if chosen, err := choose(names); err == nil {
			t.Errorf("%q chooses %d cases, want an error", names, len(chosen))
		}
	}
}

func TestBars_NameExistingCases(t *testing.T) {
	for _, b := range measure.Bars() {
		for _, name := range b.Cases {
			must.Value(choose(name))(t)
		}
	}
}

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }
