package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

// pause stops a program with SIGSTOP and waits until it is stopped. resume continues it.
func (p *program) pause(t *testing.T) {
	t.Helper()
	must.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	waittest.Until(t, "the process is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		return err == nil && bytes.Contains(stat, []byte(") T "))
	})
}

func (p *program) resume(t *testing.T) {
	t.Helper()
	must.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// publishAt publishes messages from to up to to at an ingest, each tried under the same
// key while the log does not answer in time, and returns their IDs by number.
func publishAt(t *testing.T, ingest, path string, from, to int) map[int]string {
	t.Helper()
	p, ids := procAt(t, ingest), map[int]string{}
	for n := from; n <= to; n++ {
		ids[n] = p.store(path, numbered(n))
	}
	return ids
}

// attackMessage is a numbered message with a text that a [slowLink] can count.
const attackText = "under way"

func attackMessage(n int) string {
	return strings.Replace(numbered(n), "}}", `,"text":"`+attackText+`"}}`, 1)
}

// volley is a number of publishes, one message each, numbered from 1, on connections that
// are open before.
type volley struct {
	t       *testing.T
	host    string
	conns   []net.Conn
	answers chan volleyAnswer
}

type volleyAnswer struct {
	n int
	a answer
}

// aim opens the connections to an ingest, and has it read from each.
func aim(t *testing.T, size int, ingest string) *volley {
	t.Helper()
	v := &volley{t: t, host: strings.TrimPrefix(ingest, "http://"), answers: make(chan volleyAnswer, size)}
	for range size {
		conn := webtest.Dial(t, v.host, "GET /nothing HTTP/1.1\r\nHost: "+v.host+"\r\n\r\n")
		readAnswer(t, conn)
		v.conns = append(v.conns, conn)
	}
	return v
}

// fire sends the publishes, which the ingest need not read yet.
func (v *volley) fire(path string) {
	v.t.Helper()
	for i, conn := range v.conns {
		body := attackMessage(i + 1)
		_ = conn.SetDeadline(time.Now().Add(waittest.Timeout))
		must.Value(fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, v.host, len(body), body))(v.t)
		go func() {
			a, err := whole(http.ReadResponse(bufio.NewReader(conn), nil)) //nolint:bodyclose // whole closes it
			if err != nil {
				a = answer{}
			}
			v.answers <- volleyAnswer{i + 1, a}
		}()
	}
}

// answered reports whether all are answered.
func (v *volley) answered() bool { return len(v.answers) == len(v.conns) }

// stored waits for all answers and returns the IDs of the messages answered with 201, by
// number.
func (v *volley) stored() map[int]string {
	v.t.Helper()
	ids, statuses := map[int]string{}, map[int]int{}
	for range v.conns {
		got := <-v.answers
		statuses[got.a.status]++ // 0 for a connection that was closed without an answer, which promises nothing
		if got.a.status == http.StatusCreated {
			ids[got.n] = stringIn(v.t, got.a.body, "id")
		}
	}
	v.t.Logf("answers by status: %v", statuses)
	return ids
}

// transcript has the messages that a subscriber has received, by number with their IDs,
// and the gaps.
type transcript struct {
	ids    map[int]string
	gaps   []procGap
	cursor string // of the last message
	closed bool
}

// read reads a connection up to its end, or to the first message that is numbered last or
// higher.
func (s *tap) read(last int) transcript {
	s.t.Helper()
	got := transcript{ids: map[int]string{}}
	for {
		e, err := s.tryNext()
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() { //nolint:errorlint // the decoder returns it as it is
				s.t.Fatalf("nothing comes after %d messages: %v", len(got.ids), err)
			}
			return got
		}
		switch e.Type {
		case "message":
			n := numberOf(s.t, messageOf(e.Data))
			got.ids[n], got.cursor = e.ID, e.ID
			if n >= last {
				return got
			}
		case "gap":
			var g procGap
			must.NoError(s.t, json.Unmarshal(e.Data, &g))
			got.gaps = append(got.gaps, g)
		case "close":
			got.closed = true
			return got
		}
	}
}

// messageOf returns the message of an event, which a session's flow sends in an envelope.
func messageOf(data []byte) []byte {
	var envelope struct{ Message json.RawMessage }
	if json.Unmarshal(data, &envelope) == nil && envelope.Message != nil {
		return envelope.Message
	}
	return data
}

// page requests the events after a cursor from an edge; with an empty cursor all retained
// ones.
func (p *proc) page(path, after string) (got transcript) {
	p.t.Helper()
	var page struct {
		Events []struct {
			ID      string
			Message json.RawMessage
		}
		Gaps   []procGap
		Closed bool
	}
	query := "?limit=1000"
	if after != "" {
		query += "&after=" + after
	}
	a, _ := inTime(p.t, "a page is read", func() answer { return do(p.t, http.MethodGet, p.api()+path+query, "", "Accept", "application/json") })
	if err := json.Unmarshal([]byte(a.body), &page); err != nil || a.status != http.StatusOK {
		p.t.Fatalf("a page: %d %s", a.status, a.body)
	}
	got = transcript{ids: map[int]string{}, closed: page.Closed}
	got.gaps = append(got.gaps, page.Gaps...)
	for _, e := range page.Events {
		got.ids[numberOf(p.t, e.Message)] = e.ID
	}
	return got
}

// missing returns the numbers that were stored and not received, in order.
func (got transcript) missing(stored map[int]string) (numbers []int) {
	for n := range stored {
		if _, ok := got.ids[n]; !ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// streamFolder returns a stream's folder within a store.
func streamFolder(t *testing.T, store, stream string) (folder string) {
	t.Helper()
	must.NoError(t, filepath.WalkDir(store, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == stream {
			folder = path
			return fs.SkipAll
		}
		return err
	}))
	if folder == "" {
		t.Fatalf("the store has no stream %s", stream)
	}
	return folder
}

// blocksOf returns the paths of a stream's blocks, oldest first.
func blocksOf(t *testing.T, folder string) (paths []string) {
	t.Helper()
	paths = must.Value(filepath.Glob(filepath.Join(folder, "msgs", "*.blk")))(t)
	number := func(path string) int {
		return must.Value(strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".blk")))(t)
	}
	slices.SortFunc(paths, func(a, b string) int { return number(a) - number(b) })
	return paths
}

// removeIndex removes the index of a stream's blocks, which a power cut leaves old or not
// at all. The server then reads the blocks.
func removeIndex(t *testing.T, folder string) {
	t.Helper()
	must.NoError(t, os.Remove(filepath.Join(folder, "msgs", "index.db")))
}

// truncateNewest truncates the newest block of a stream, as a power cut does.
func truncateNewest(t *testing.T, folder string, percent int64) {
	t.Helper()
	all := blocksOf(t, folder)
	if len(all) == 0 {
		t.Fatalf("%s has no blocks", folder)
	}
	removeIndex(t, folder)
	truncate(t, all[len(all)-1], percent)
}

// truncate leaves a part of a file: none of it, or so many hundredths.
func truncate(t *testing.T, path string, percent int64) {
	t.Helper()
	must.NoError(t, os.Truncate(path, must.Value(os.Stat(path))(t).Size()*percent/100))
}

// putBack restores a folder from its copy.
func putBack(t *testing.T, folder, backup string) {
	t.Helper()
	must.NoError(t, os.RemoveAll(folder))
	must.NoError(t, os.CopyFS(folder, os.DirFS(backup)))
}

// slowLink is a relay to a NATS server that can stand still without closing anything, in
// each direction, and that can hold back the server's messages of some subjects, as a
// server of a cluster does that is behind the others.
type slowLink struct {
	relay

	target string
	// writing orders the frames to the clients; it comes before mu.
	writing sync.Mutex
	changed *sync.Cond // of mu
	ended   bool
	stalled map[direction]bool
	sent    bytes.Buffer // the client's data since the last stall began
	prefix  string       // of the subjects that are held back; empty: none
	late    []lateFrame
}

type direction string

const (
	toServer direction = "to the server"
	toClient direction = "to the client"
)

type lateFrame struct {
	client net.Conn
	frame  []byte
}

// newSlowLink starts a proxy, which ends with the test.
func newSlowLink(t *testing.T, target string) *slowLink {
	t.Helper()
	l := &slowLink{target: target, stalled: map[direction]bool{}}
	l.changed = sync.NewCond(&l.mu)
	l.listen(t, l.handle)
	t.Cleanup(func() { l.change(func() { l.ended = true }) })
	return l
}

func (l *slowLink) flag() string { return "--nats-url=nats://" + l.addr() }

func (l *slowLink) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	l.changed.Broadcast()
}

// handle forwards a connection.
func (l *slowLink) handle(client net.Conn) {
	server, err := new(net.Dialer).Dial("tcp", l.target)
	if err != nil || !l.join(client, server) {
		return
	}
	var pumps sync.WaitGroup
	for _, pump := range []func(){func() { l.forward(client, server) }, func() { l.deliver(client, bufio.NewReader(server)) }} {
		pumps.Go(func() {
			pump()
			_, _ = client.Close(), server.Close() // the end of one ends the other
		})
	}
	pumps.Wait()
}

// forward copies the client's data. It continues to read while the direction is stalled.
func (l *slowLink) forward(client, server net.Conn) {
	chunks := make(chan []byte, 1<<12)
	l.handling.Go(func() {
		for b := range chunks {
			if l.pass(toServer) {
				_, _ = server.Write(b) // a failure ends the reading as well
			}
		}
	})
	defer close(chunks)
	b := make([]byte, 64<<10)
	for {
		n, err := client.Read(b)
		if err != nil {
			return
		}
		l.mu.Lock()
		l.sent.Write(b[:n])
		l.mu.Unlock()
		chunks <- bytes.Clone(b[:n])
	}
}

// deliver copies the server's data, one protocol message after the other.
func (l *slowLink) deliver(client net.Conn, server *bufio.Reader) {
	for {
		frame, subject, err := readFrame(server)
		if err != nil || !l.pass(toClient) {
			return
		}
		if !l.write(lateFrame{client, frame}, subject) {
			return
		}
	}
}

// write sends the client a message, or holds it back, and reports whether to continue.
func (l *slowLink) write(f lateFrame, subject string) bool {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	late := l.prefix != "" && strings.HasPrefix(subject, l.prefix)
	if late {
		l.late = append(l.late, f)
	}
	l.mu.Unlock()
	if late {
		return true
	}
	_, err := f.client.Write(f.frame)
	return err == nil
}

// pass waits while a direction is stalled, and reports whether to continue.
func (l *slowLink) pass(d direction) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.stalled[d] && !l.ended {
		l.changed.Wait()
	}
	return !l.ended
}

// readFrame reads one message of NATS's protocol, and its subject if it has one.
func readFrame(r *bufio.Reader) (frame []byte, subject string, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, "", err
	}
	fields := strings.Fields(string(line))
	if len(fields) < 4 || fields[0] != "MSG" && fields[0] != "HMSG" {
		return line, "", nil
	}
	size, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		return nil, "", err
	}
	payload := make([]byte, size+len("\r\n"))
	_, err = io.ReadFull(r, payload)
	return append(line, payload...), fields[1], err
}

// stall stops the data in some directions, and begins to record the client's.
func (l *slowLink) stall(directions ...direction) {
	l.change(func() {
		l.sent.Reset()
		for _, d := range directions {
			l.stalled[d] = true
		}
	})
}

// heal lets everything through again.
func (l *slowLink) heal() {
	l.change(func() {
		clear(l.stalled)
		l.refuse = false
	})
}

// cut ends all connections, and refuses others until heal.
func (l *slowLink) cut() { l.change(func() { l.refuse, l.late = true, nil; l.cutLocked() }) }

// counted returns how often the client has sent a text since the last stall began.
func (l *slowLink) counted(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.sent.Bytes(), []byte(text))
}

// holdBack holds back the server's messages of subjects with a prefix, until releaseLate.
func (l *slowLink) holdBack(prefix string) { l.change(func() { l.prefix = prefix }) }

// lateBy is how much later than the others a held-back message is delivered.
const lateBy = 3 * time.Second

// releaseLate delivers the held-back messages after a while. The services have handled
// the others by then, unless the machine is slow: the attack is a weaker one then.
func (l *slowLink) releaseLate() {
	time.AfterFunc(lateBy, func() {
		l.writing.Lock()
		defer l.writing.Unlock()
		var late []lateFrame
		l.change(func() { late, l.late, l.prefix = l.late, nil, "" })
		for _, f := range late {
			_, _ = f.client.Write(f.frame) // the connection may be cut already
		}
	})
}

// builtWithClock builds a program whose wall clock differs from the machine's, and returns
// the name by which startProgram finds it. No clock of one process alone can be set from
// outside, since Go reads it without a system call. The first build on a machine compiles
// the standard library as well.
func builtWithClock(t *testing.T, pkg string, by time.Duration) (name string) {
	t.Helper()
	builds.Lock()
	defer builds.Unlock()
	name = fmt.Sprintf("%s%+ds", filepath.Base(pkg), int64(by/time.Second))
	root := must.Value(exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output())(t)
	file := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source := must.Value(os.ReadFile(file))(t)
	const read = "sec, nsec, mono := runtimeNow()\n"
	if bytes.Count(source, []byte(read)) != 1 {
		t.Fatalf("%s does not read the clock as expected", file)
	}
	changed := strings.Replace(string(source), read, read+fmt.Sprintf("\tsec += %d\n", int64(by/time.Second)), 1)
	dir := t.TempDir()
	replacement, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	paths := must.Value(json.Marshal(map[string]map[string]string{"Replace": {file: replacement}}))(t)
	for name, data := range map[string][]byte{replacement: []byte(changed), overlay: paths} {
		must.NoError(t, os.WriteFile(name, data, 0o600))
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-overlay="+overlay, "-o", filepath.Join(scratch, name), pkg).CombinedOutput() //nolint:gosec // our own program
	if err != nil {
		t.Fatalf("cannot build %s: %v\n%s", pkg, err, out)
	}
	builds.done[name] = true
	return name
}
