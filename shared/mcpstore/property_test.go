package mcpstore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"pgregory.net/rapid"
)

// A store answers as the SDK's own does: after any calls, to any of several replicas,
// over restarts of processes and of NATS. The SDK's purges at any time, and the test has this
// one trimmed instead; the SDK's takes an index after the end, and this one refuses it.
func TestStore_AnswersAsTheMemoryStore(t *testing.T) {
	w := newWorld(t)
	type process struct {
		*Store
		end func()
	}
	start := func() process {
		s, end := w.process(Config{})
		return process{s, end}
	}
	processes := []process{start(), start()}
	t.Cleanup(func() {
		for _, p := range processes {
			p.end()
		}
	})
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		memory := mcp.NewMemoryEventStore(nil)
		type written struct{ session, stream string }
		writer := map[written]int{}  // which process writes a stream
		count := map[written]int{}   // of its events
		trimmed := map[written]int{} // how many of them are deleted
		var known []written
		var names []written
		for _, session := range []string{"a", "b"} {
			for _, stream := range []string{"", "r1", "r2"} {
				names = append(names, written{fmt.Sprint(session, run), stream})
			}
		}
		check := func(p process, at written, index int) {
			got, err := after(t, p, at.session, at.stream, index)
			if index < trimmed[at]-1 {
				if !errors.Is(err, mcp.ErrEventsPurged) {
					rt.Fatalf("%v after %d of %d, %d trimmed: %q, %v", at, index, count[at], trimmed[at], got, err)
				}
				return
			}
			want, memoryErr := after(t, memory, at.session, at.stream, index)
			if err != nil || memoryErr != nil || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
				rt.Fatalf("%v after %d: %q, %v; want %q, %v", at, index, got, err, want, memoryErr)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"open": func(rt *rapid.T) {
				at := rapid.SampledFrom(names).Draw(rt, "stream")
				n := rapid.IntRange(0, len(processes)-1).Draw(rt, "process")
				if _, there := writer[at]; !there {
					known = append(known, at)
				}
				mustOpen(t, processes[n], at.session, at.stream)
				mustOpen(t, memory, at.session, at.stream)
				if _, there := writer[at]; !there || n == writer[at] {
					writer[at] = n
				} else { // the one before has ended, and another one is in its place
					processes[writer[at]].end()
					ended := writer[at]
					processes[ended] = start()
					for of, by := range writer {
						if by == ended {
							writer[of] = n
						}
					}
				}
			},
			"append": func(rt *rapid.T) {
				if len(known) == 0 {
					rt.Skip()
				}
				at := rapid.SampledFrom(known).Draw(rt, "stream")
				data := ""
				if rapid.Bool().Draw(rt, "data") {
					data = message(count[at])
				}
				mustAppend(t, processes[writer[at]], at.session, at.stream, data)
				mustAppend(t, memory, at.session, at.stream, data)
				count[at]++
			},
			"trim": func(rt *rapid.T) {
				if len(known) == 0 {
					rt.Skip()
				}
				at := rapid.SampledFrom(known).Draw(rt, "stream")
				if left := count[at] - trimmed[at]; left > 1 { // the end stays: see the other tests
					n := rapid.IntRange(1, left-1).Draw(rt, "events")
					named, _ := placeOf(at.session, at.stream)
					w.trim(at.session, named.stream, n)
					trimmed[at] += n
				}
			},
			"restart": func(rt *rapid.T) {
				if rapid.IntRange(0, 39).Draw(rt, "often") == 0 {
					w.restart()
				}
			},
			"": func(rt *rapid.T) {
				if len(known) == 0 || rapid.IntRange(0, 2).Draw(rt, "look") > 0 {
					return
				}
				at := rapid.SampledFrom(known).Draw(rt, "read")
				p := processes[rapid.IntRange(0, len(processes)-1).Draw(rt, "by")]
				check(p, at, rapid.IntRange(-1, count[at]-1).Draw(rt, "index"))
			},
		})
		for n, at := range known {
			check(processes[n&1], at, trimmed[at]-1)
			check(processes[n&1], at, max(trimmed[at]-2, -1))
		}
	})
}
