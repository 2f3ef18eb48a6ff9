package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"rejoin/shared/event"
	"rejoin/shared/sse"
)

// server is something that broadcasts: Rejoin, a raw server, or a peer.
type server interface {
	// target is where clients connect.
	target() target
	// publish sends a message to a stream; messages may wait in a buffer until push.
	// flush returns when all were taken.
	publish(ctx context.Context, stream int, message []byte) error
	push() error
	flush(ctx context.Context) error
	// pids are its processes.
	pids() []int
	close()
}

// target is where clients connect.
type target struct {
	addr string // host:port
	path func(stream int) string
	// sequenced says that event ids end in a sequence that only grows.
	sequenced bool
}

// contender is a server that is measured; prefix stands before its figures.
type contender struct {
	prefix string
	start  func(ctx context.Context, p *programs) (server, error)
}

// The prefixes of the contenders. Rejoin's figures have none.
const (
	ofRejoin   = ""
	ofRaw      = "raw_"
	ofRawBatch = "rawbatch_"
	ofNchan    = "nchan_"
)

// contenders returns those with the prefixes, except Nchan when it is not installed.
func (p *programs) contenders(prefixes ...string) []contender {
	var all []contender
	for _, prefix := range prefixes {
		c := contender{prefix: prefix}
		switch prefix {
		case ofRejoin:
			c.start = func(ctx context.Context, p *programs) (server, error) { return startRejoin(ctx, p, "") }
		case ofRaw:
			c.start = func(ctx context.Context, _ *programs) (server, error) { return startRaw(ctx, rawEach) }
		case ofRawBatch:
			c.start = func(ctx context.Context, _ *programs) (server, error) { return startRaw(ctx, rawBatch) }
		case ofNchan:
			if p.nginx == "" {
				continue
			}
			c.start = func(ctx context.Context, p *programs) (server, error) { return startNchan(ctx, p) }
		}
		all = append(all, c)
	}
	return all
}

// rejoin is the standalone program; messages are published straight to its log,
// without waiting for each one's acknowledgement, so that publishing is not the limit.
type rejoin struct {
	*system
	*logPublisher
}

const (
	benchSession = "bench"
	// partitions is what a log has by default.
	partitions = 16
	// unacknowledged is how many messages may be on their way to the log.
	unacknowledged = 4096
)

// followAll is the flag of an edge that follows all partitions, from the start.
const followAll = "--partition-linger=-1"

// startRejoin starts the standalone program on a data folder, or on a new one when
// that is "".
func startRejoin(ctx context.Context, p *programs, dir string, args ...string) (*rejoin, error) {
	s, err := start(ctx, p, dir, args...)
	if err != nil {
		return nil, err
	}
	publisher, err := newLogPublisher(s.nats)
	if err != nil {
		s.stop()
		return nil, err
	}
	return &rejoin{system: s, logPublisher: publisher}, nil
}

// streamsPerSession spreads streams over sessions, and so over partitions.
const streamsPerSession = 10

func sessionOf(stream int) string { return benchSession + strconv.Itoa(stream/streamsPerSession) }

func subjectOf(stream int) string {
	session := sessionOf(stream)
	return event.Subject{Partition: event.Partition(session, partitions), Session: session, Stream: strconv.Itoa(stream)}.String()
}

// eventsPath is where an edge serves a stream.
func eventsPath(stream int) string {
	return "/v1/sessions/" + sessionOf(stream) + "/streams/" + strconv.Itoa(stream) + "/events"
}

// edgeTarget is an edge, or the standalone program, to clients that begin now, or at their event ID.
func edgeTarget(s *system) target {
	return target{addr: strings.TrimPrefix(s.edge, "http://"), sequenced: true, path: func(stream int) string { return eventsPath(stream) + "?from=now" }}
}

func (r *rejoin) target() target { return edgeTarget(r.system) }

func (r *rejoin) pids() []int { return []int{r.cmd.Process.Pid} }

func (r *rejoin) close() {
	r.nc.Close()
	r.stop()
}

// rawServer is a raw server in a process of its own.
type rawServer struct {
	cmd      *exec.Cmd
	addr     string
	conn     net.Conn
	w        *bufio.Writer
	sequence int
}

func startRaw(ctx context.Context, kind string) (*rawServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := command(ctx, self, kind)
	cmd.Stderr = os.Stderr
	addr, err := begin(cmd)
	if err != nil {
		return nil, errors.Join(errors.New("the raw server did not start"), err)
	}
	r := &rawServer{cmd: cmd, addr: addr}
	if r.conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", r.addr); err != nil {
		end(cmd)
		return nil, err
	}
	r.w = bufio.NewWriterSize(r.conn, 64<<10)
	return r, r.w.WriteByte(0)
}

func (r *rawServer) target() target {
	return target{addr: r.addr, sequenced: true, path: func(stream int) string { return "/" + strconv.Itoa(stream) }}
}

func (r *rawServer) publish(_ context.Context, stream int, message []byte) error {
	r.sequence++
	frame := sse.AppendEvent(nil, "raw_0000000_"+strconv.Itoa(r.sequence), "", message)
	var head [8]byte
	binary.BigEndian.PutUint32(head[:4], uint32(stream))     //nolint:gosec // small
	binary.BigEndian.PutUint32(head[4:], uint32(len(frame))) //nolint:gosec // small
	_, err := r.w.Write(append(head[:], frame...))
	return err
}

func (r *rawServer) push() error                 { return r.w.Flush() }
func (r *rawServer) flush(context.Context) error { return r.w.Flush() }
func (r *rawServer) pids() []int                 { return []int{r.cmd.Process.Pid} }

func (r *rawServer) close() {
	_ = r.conn.Close()
	end(r.cmd)
}
