package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Servers are servers of a cluster: the name of each, and its ID, which is another one
// after every start.
type Servers map[string]string

const (
	// pingSubject is what every account may ask all servers of a cluster, and these answer
	// for this account alone. Those without a connection of it answer when they are told to.
	pingSubject = "$SYS.REQ.ACCOUNT.PING.STATZ"
	pingRequest = `{"include_unused":true}`
	// pingWithin is how long answers are waited for, and pingQuiet how long for another one
	// when all that are known have answered.
	pingWithin = 1500 * time.Millisecond
	pingQuiet  = 300 * time.Millisecond
	// maxServers bounds a partition's list; one that would be longer starts again with the
	// servers that are there.
	maxServers = 64
)

// Servers asks all servers of the cluster who they are, and returns those that answer: all
// of them were there together when they were asked. It takes 300 ms when those that are
// known answer, else 1.5 s. The error wraps [ErrUnavailable], also when no server answers: the
// user may lack the permission to ask.
func (l *Log) Servers(ctx context.Context, known Servers) (Servers, error) {
	ctx, cancel := context.WithTimeout(ctx, pingWithin)
	defer cancel()
	names := slices.Collect(maps.Keys(known))
	sub, err := l.nc.SubscribeSync(l.nc.NewInbox())
	if err != nil {
		return nil, errors.Join(ErrUnavailable, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be closed already
	if err := l.nc.PublishRequest(pingSubject, sub.Subject, []byte(pingRequest)); err != nil {
		return nil, errors.Join(ErrUnavailable, err)
	}
	there := Servers{}
	for {
		wait, done := ctx, context.CancelFunc(func() {})
		if len(there) > 0 && there.count(names) == len(names) {
			wait, done = context.WithTimeout(ctx, pingQuiet)
		}
		msg, err := sub.NextMsgWithContext(wait)
		done()
		if err != nil {
			break
		}
		if name, id, ok := parseAnswer(msg.Data); ok {
			there[name] = id
		}
	}
	if len(there) == 0 {
		return nil, fmt.Errorf("%w: no server answers on %s", ErrUnavailable, pingSubject)
	}
	return there, nil
}

// seen is Servers for a new log, which can do without.
func (l *Log) seen(ctx context.Context) Servers {
	if !l.Clustered() {
		return nil
	}
	servers, err := l.Servers(ctx, nil)
	if err != nil {
		l.log.Warn("the servers of the cluster are not known", "error", err)
	}
	return servers
}

// parseAnswer reads what a server answers.
func parseAnswer(data []byte) (name, id string, ok bool) {
	var answer struct {
		Server struct{ Name, ID string }
	}
	err := json.Unmarshal(data, &answer)
	name, id = answer.Server.Name, answer.Server.ID
	return name, id, err == nil && name != "" && id != ""
}

// format writes a JSON object.
func (s Servers) format() string {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // no map of strings fails
	}
	return string(data)
}

// parseServers reads what format has written. Nothing is a list of none, of a log that an
// earlier version has made.
func parseServers(text string) (Servers, error) {
	if text == "" {
		return nil, nil
	}
	var s Servers
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("%w: its servers are %q", ErrMismatch, text)
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
// while others that hold the partition were away: those may have been with it.
const doubt = "?"

// awaits reports whether a server is in another life than s knows of. One that s does not
// name is none of those that held anything.
func (s Servers) awaits(name, id string) bool { return s[name] != "" && !s.knows(name, id) }

func (s Servers) knows(name, id string) bool { return strings.TrimPrefix(s[name], doubt) == id }

// changed returns which of the named servers are there in other lives than those in s, or
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

// compare judges a partition whose metadata says s and that holders hold now, by what was
// seen of the cluster, oldest look first. It is lost when most of its holders were started
// again together: what they stored last may have been on them alone. next is what the
// metadata is to say.
//
// A server that was restarted is taken for one that has got everything from the others
// when it is seen with all of them, most in the lives that are known; or with some, while
// there never was a look without most of them. So servers that are started one after the
// other lose nothing, whether or not somebody writes that down at once. Those that come
// back one by one, after most were away, are in doubt until all are back.
func (s Servers) compare(holders []string, looks []Servers) (lost bool, next Servers) {
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
			// Whatever the others are when they come back, this look comes before.
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

// since returns the looks that are newer than s: those from the newest ones on that agree
// with s, or the newest one alone. Others have written s perhaps, and it is unknown on which
// side of it older looks are.
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

// agrees reports whether a look shows most holders, and all that it shows in lives that s
// knows.
func (s Servers) agrees(holders []string, there Servers) bool {
	n := 0
	for _, name := range holders {
		switch {
		case s[name] == "" || there[name] == "":
		case s.knows(name, there[name]):
			n++
		default:
			return false
		}
	}
	return 2*n > len(holders)
}

// holders returns the names of the servers that hold a stream; none while it has no leader.
func holders(info *jetstream.StreamInfo) []string {
	if info.Cluster == nil || info.Cluster.Leader == "" {
		return nil
	}
	names := []string{info.Cluster.Leader}
	for _, r := range info.Cluster.Replicas {
		names = append(names, r.Name)
	}
	return names
}

// compareServers is BeginGeneration in a cluster.
func (l *Log) compareServers(ctx context.Context, p int, looks []Servers) (bool, error) {
	if len(looks) == 0 {
		return false, nil
	}
	state, _ := l.State(p)
	if lost, next := state.servers.compare(state.holders, looks); len(state.holders) > 0 && !lost && maps.Equal(next, state.servers) {
		return false, nil
	}
	return l.changeServers(ctx, p, func(info *jetstream.StreamInfo, meta map[string]string) (bool, error) {
		names := holders(info)
		if len(names) == 0 {
			return false, fmt.Errorf("%w: partition %d has no leader", ErrUnavailable, p)
		}
		known, err := parseServers(meta[metaServers])
		if err != nil {
			return false, err
		}
		lost, next := known.compare(names, looks)
		if !maps.Equal(next, known) {
			meta[metaServers] = next.format()
		}
		return lost, nil
	})
}
