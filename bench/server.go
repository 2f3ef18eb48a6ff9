package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/sse"
)

// server is something that broadcasts: Rejoin, a raw server, or a peer.
type server interface {
	// target is where clients of stream connect.
	target(stream int) (addr, path string)
	// publish sends a message to a stream; flush returns when all were taken.
	publish(ctx context.Context, stream int, message []byte) error
	flush(ctx context.Context) error
	// pids are its processes.
	pids() []int
	close()
}

// cpu returns the processor time that processes have used.
func cpu(pids []int) (time.Duration, error) {
	var ticks int64
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
		for _, f := range fields[11:13] { // utime, stime (proc(5), fields 14 and 15)
			v, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return 0, err
			}
			ticks += v
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // USER_HZ is 100 on Linux
}

// resident returns the resident memory of processes, in bytes.
func resident(pids []int) (int64, error) {
	var pages int64
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			return 0, err
		}
		v, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
		if err != nil {
			return 0, err
		}
		pages += v
	}
	return pages * int64(os.Getpagesize()), nil
}

// rejoin is the standalone program; messages are published straight to its log,
// in batches, so that publishing is not the limit.
type rejoin struct {
	*system
	nc *nats.Conn
	js jetstream.JetStream
}

const benchSession = "bench"

func startRejoin(ctx context.Context, program string, args ...string) (server, error) {
	s, err := start(ctx, program, args...)
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(s.nats)
	if err != nil {
		s.stop()
		return nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(512))
	if err != nil {
		nc.Close()
		s.stop()
		return nil, err
	}
	return &rejoin{system: s, nc: nc, js: js}, nil
}

// sessionOf spreads streams over sessions, and so over partitions.
func sessionOf(stream int) string { return benchSession + strconv.Itoa(stream/10) }

func (r *rejoin) target(stream int) (addr, path string) {
	return strings.TrimPrefix(r.edge, "http://"), "/v1/sessions/" + sessionOf(stream) + "/streams/" + strconv.Itoa(stream) + "/events?from=now"
}

func (r *rejoin) publish(_ context.Context, stream int, message []byte) error {
	session := sessionOf(stream)
	s := event.Subject{Partition: event.Partition(session, 16), Session: session, Stream: strconv.Itoa(stream)}
	_, err := r.js.PublishAsync(s.String(), message)
	return err
}

func (r *rejoin) flush(ctx context.Context) error {
	select {
	case <-r.js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *rejoin) pids() []int { return []int{r.cmd.Process.Pid} }

func (r *rejoin) close() {
	r.nc.Close()
	r.stop()
}

// rawServer is a raw server in a process of its own. It knows one stream.
type rawServer struct {
	cmd      *exec.Cmd
	addr     string
	conn     net.Conn
	w        *bufio.Writer
	sequence int
}

func startRaw(ctx context.Context, kind string) (server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, kind) //nolint:gosec // this program
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill())
	}
	r := &rawServer{cmd: cmd, addr: strings.TrimSpace(line)}
	if r.conn, err = net.Dial("tcp", r.addr); err != nil { //nolint:noctx // at once
		return nil, errors.Join(err, cmd.Process.Kill())
	}
	r.w = bufio.NewWriterSize(r.conn, 64<<10)
	return r, r.w.WriteByte(0)
}

func (r *rawServer) target(int) (addr, path string) { return r.addr, "/" }

func (r *rawServer) publish(_ context.Context, _ int, message []byte) error {
	r.sequence++
	frame := sse.AppendEvent(nil, "raw_0000000_"+strconv.Itoa(r.sequence), "", message)
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(len(frame))) //nolint:gosec // small
	_, err := r.w.Write(append(size[:], frame...))
	return err
}

func (r *rawServer) flush(context.Context) error { return r.w.Flush() }
func (r *rawServer) pids() []int                 { return []int{r.cmd.Process.Pid} }

func (r *rawServer) close() {
	_ = r.conn.Close()
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}
