// Package cluster judges the servers of a NATS cluster: which of them hold a JetStream stream and lead
// it, and whether most of its holders were restarted together, so that the newest entries may be lost.
//
//	Ping                             asks the servers for their names and IDs
//	Servers, Parse                   one look at them, as the metadata of a partition keeps it
//	Servers.Compare                  compares several looks with the metadata
//	Holders, Leader, HasQuorum, Current   the servers in the answer about a stream
package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"rejoin/shared/event"
)

// Servers are servers of a cluster: the name of each, and its ID, which is another one
// after every start.
type Servers map[string]string

// maxServers bounds a partition's list; one that would be longer starts again with the
// servers that are there.
const maxServers = 64

// Format writes a JSON object.
func (s Servers) Format() string { return string(event.MustJSON(s)) }

// Parse reads the text of Format. An empty text is a list of none, of a log that an
// earlier version has made.
func Parse(text string) (Servers, error) {
	if text == "" {
		return nil, nil
	}
	var s Servers
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("its servers are %q", text)
	}
	return s, nil
}

// count returns how many of the names are there.
func (s Servers) count(names []string) (n int) {
	for _, name := range names {
		if s[name] != "" {
			n++
		}
	}
	return n
}

// doubt stands before the ID, in a partition's list, of a server that was restarted
// while others that hold the partition were down: those may have been restarted with it.
const doubt = "?"

// Awaits reports whether a server has another ID than s knows. A server that s does not
// name has held no entry.
func (s Servers) Awaits(name, id string) bool { return s[name] != "" && !s.Knows(name, id) }

// Knows reports whether s names a server with this ID, in doubt or not.
func (s Servers) Knows(name, id string) bool { return strings.TrimPrefix(s[name], doubt) == id }

// changed returns which of the named servers are there with other IDs than those in s, or
// in doubt. One that is not there has not changed, one that s does not name has.
func (s Servers) changed(names []string, there Servers) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return there[name] == "" || there[name] == s[name] })
}

// with returns s with other servers.
func (s Servers) with(there Servers) Servers {
	next := maps.Clone(s)
	if next == nil {
		next = Servers{}
	}
	maps.Copy(next, there)
	if len(next) > maxServers {
		return maps.Clone(there)
	}
	return next
}

// Compare judges a partition whose metadata has s and that holders hold now, by looks at
// the cluster, oldest first. It is lost when most of its holders were restarted together:
// its newest entries may have been on them alone. next are the servers for the metadata.
//
// A restarted server is taken for one that has received all entries from the others
// when it is seen with all of them, most with the IDs that are known; or with some, while
// there never was a look without most of them. So servers that are restarted one after the
// other lose nothing, whether or not a janitor records that at once. Servers that start
// one by one, after most were down, are in doubt until all run again.
func (s Servers) Compare(holders []string, looks []Servers) (lost bool, next Servers) {
	next = s
	looks = s.since(holders, looks)
	most := len(looks) > 0 && s.agrees(holders, looks[0])
	for _, there := range looks {
		changed, present := next.changed(holders, there), there.count(holders)
		doubted := next
		next = next.with(there)
		switch {
		case 2*len(changed) > len(holders):
			lost, most = true, 2*present > len(holders)
			// The others may return with any ID: this look comes before.
			maps.DeleteFunc(next, func(name, _ string) bool { return there[name] == "" && slices.Contains(holders, name) })
		case present == len(holders):
			most = true
		default:
			most = most && 2*present > len(holders)
			for _, name := range changed {
				if id := doubt + there[name]; !most || doubted[name] == id {
					next[name] = id
				}
			}
		}
	}
	return lost, next
}

// Restarted returns the IDs that holders of a partition got since the look of its metadata s, and whether a server
// was not restarted, a holder or another one: its clients do not wait for a generation. There are no IDs unless most
// holders were restarted: that some are in doubt is no news.
func (s Servers) Restarted(holders []string, looks []Servers) (ids []string, survives bool) {
	restarted := 0
	for _, there := range s.since(holders, looks) {
		restarted, survives = 0, false
		for name, id := range there {
			survives = survives || !s.Awaits(name, id)
		}
		for _, name := range holders {
			if there[name] != "" && s.Awaits(name, there[name]) {
				restarted++
				ids = append(ids, there[name])
			}
		}
	}
	if 2*restarted <= len(holders) {
		return nil, survives
	}
	return ids, survives
}

// since returns the looks that are newer than s: those from the newest ones on that agree
// with s, or the newest one alone. Another janitor may have written s, and it is unknown
// whether older looks are older than s.
func (s Servers) since(holders []string, looks []Servers) []Servers {
	i := len(looks) - 1
	for i >= 0 && !s.agrees(holders, looks[i]) {
		i--
	}
	for i > 0 && s.agrees(holders, looks[i-1]) {
		i--
	}
	if i < 0 {
		i = max(len(looks)-1, 0)
	}
	return looks[i:]
}

// agrees reports whether a look shows most holders, and all that it shows with the IDs that
// s knows.
func (s Servers) agrees(holders []string, there Servers) bool {
	n := 0
	for _, name := range holders {
		switch {
		case s[name] == "" || there[name] == "":
		case s.Knows(name, there[name]):
			n++
		default:
			return false
		}
	}
	return 2*n > len(holders)
}
