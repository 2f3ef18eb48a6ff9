package system

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"rejoin/shared/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestMetrics_SumOfSeries(t *testing.T) {
	text := "# HELP a_total x\na_total{from=\"log\"} 3\na_total{from=\"window\"} 4e3\na_total_more 5\na 7\n"
	for name, want := range map[string]float64{"a_total": 4003, "a": 7, "b": 0} {
		if got, err := sumOf(text, name); err != nil || got != want {
			t.Errorf("%s is %v, %v; want %v", name, got, err, want)
		}
	}
}

func TestNchan_AnswerHasAnID(t *testing.T) {
	answer := func(status, body string) string {
		return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: text/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
	}
	good := `{"messages": 1, "requested": 0, "subscribers": 1, "last_message_id": "1795282350:0" }`
	r := bufio.NewReader(strings.NewReader(answer("201 Created", good) + answer("202 Accepted", good) + answer("201 Created", "{}") + answer("413 Too Large", good)))
	for i := range 4 {
		id, err := readAnswer(r)
		if i < 2 && (id != "1795282350:0" || err != nil) || i >= 2 && err == nil {
			t.Errorf("answer %d has the id %q, %v", i, id, err)
		}
	}
}
