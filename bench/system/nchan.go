package system

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"rejoin/bench/load"
	"rejoin/bench/measure"
)

// Nchan is a peer: nginx with Debian's libnginx-mod-nchan, two workers, in memory,
// so it forgets on restart. It is measured when it is installed.
type Nchan struct {
	cmd   *exec.Cmd
	dir   string
	addr  string
	conns []*nchanPublisher
}

// nchanPublishers are the connections that messages are published on, several
// requests ahead, so that publishing is not the limit. A stream has one of them,
// which keeps its order.
const nchanPublishers = 8

// nchanAhead is how many requests of a connection may be unanswered.
const nchanAhead = 128

func nchanConfig(dir, module, addr string) string {
	user := ""
	if os.Getuid() == 0 {
		user = "user root;"
	}
	return fmt.Sprintf(`load_module %[2]s;
%[4]s
daemon off;
worker_processes 2;
worker_rlimit_nofile 20000;
pid %[1]s/nginx.pid;
error_log %[1]s/error.log warn;
events { worker_connections 19900; }
http {
	access_log off;
	keepalive_requests 1000000000;
	keepalive_timeout 1h;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	nchan_shared_memory_size 3072M;
	server {
		listen %[3]s backlog=4096;
		location ~ ^/publish/(.+)$ {
			nchan_publisher;
			nchan_channel_id $1;
			nchan_message_buffer_length 100000;
			nchan_message_timeout 1h;
		}
		location ~ ^/events/(.+)$ {
			nchan_subscriber eventsource;
			nchan_channel_id $1;
			nchan_subscriber_first_message newest;
		}
	}
}
`, dir, module, addr, user)
}

// StartNchan starts nginx with Nchan, and waits until it listens.
func StartNchan(ctx context.Context, p *Programs) (*Nchan, error) {
	dir, err := os.MkdirTemp(p.dir, "nchan-")
	if err != nil {
		return nil, err
	}
	n := &Nchan{dir: dir}
	if n.addr, err = freeAddr(ctx); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, []byte(nchanConfig(dir, p.nchan, n.addr)), 0o600); err != nil {
		return nil, err
	}
	n.cmd = command(ctx, p.nginx, "-p", dir, "-c", config, "-e", filepath.Join(dir, "error.log"))
	n.cmd.Stderr = os.Stderr
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	if err := n.connect(ctx); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// connect waits until nginx listens.
func (n *Nchan) connect(ctx context.Context) error {
	for range 500 {
		if err := measure.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.addr)
		if err != nil {
			continue
		}
		n.conns = append(n.conns, newNchanPublisher(c, n.addr))
		if len(n.conns) == nchanPublishers {
			return nil
		}
	}
	return errors.New("nginx did not get ready")
}

// freeAddr returns an address that was free a moment ago: nginx takes no port 0.
func freeAddr(ctx context.Context) (string, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// Target returns the address and the paths for clients.
func (n *Nchan) Target() load.Target {
	return load.Target{Addr: n.addr, Path: func(stream int) string { return "/events/" + strconv.Itoa(stream) }}
}

func (n *Nchan) publisher(stream int) *nchanPublisher { return n.conns[stream%len(n.conns)] }

// Publish is PublishTold without told.
func (n *Nchan) Publish(ctx context.Context, stream int, message []byte) error {
	return n.PublishTold(ctx, stream, message, nil)
}

// PublishTold publishes a message. told is called with its id, by another goroutine, before Flush
// returns.
func (n *Nchan) PublishTold(ctx context.Context, stream int, message []byte, told func(id string)) error {
	return n.publisher(stream).publish(ctx, stream, message, told)
}

// Push sends the requests that wait in buffers.
func (n *Nchan) Push() error {
	var err error
	for _, c := range n.conns {
		err = errors.Join(err, c.w.Flush())
	}
	return err
}

// Flush returns when all requests were answered.
func (n *Nchan) Flush(ctx context.Context) error {
	if err := n.Push(); err != nil {
		return err
	}
	for _, c := range n.conns {
		if err := c.answered(ctx); err != nil {
			return err
		}
	}
	return nil
}

// PIDs are nginx and its workers.
func (n *Nchan) PIDs() []int { return children(n.cmd.Process.Pid) }

// Close ends nginx.
func (n *Nchan) Close() {
	for _, c := range n.conns {
		_ = c.conn.Close()
		close(c.asked)
		c.done.Wait()
	}
	End(n.cmd)
	_ = os.RemoveAll(n.dir)
}

// nchanPublisher is a connection on which messages are published, with many
// requests on their way. Its methods are for one goroutine.
type nchanPublisher struct {
	conn  net.Conn
	host  string
	w     *bufio.Writer
	asked chan func(id string) // of the requests on their way; nil when the id is not wanted
	taken chan struct{}        // a token for each request that may be sent
	done  sync.WaitGroup
	err   error // of the reader, once taken is closed
}

func newNchanPublisher(conn net.Conn, host string) *nchanPublisher {
	c := &nchanPublisher{
		conn: conn, host: host, w: bufio.NewWriterSize(conn, 64<<10),
		asked: make(chan func(string), nchanAhead), taken: make(chan struct{}, nchanAhead),
	}
	for range nchanAhead {
		c.taken <- struct{}{}
	}
	c.done.Go(c.read)
	return c
}

// publish sends a message. told is called with its id, by another goroutine, before
// answered returns.
func (c *nchanPublisher) publish(ctx context.Context, stream int, message []byte, told func(id string)) error {
	if err := c.token(ctx); err != nil {
		return err
	}
	c.asked <- told
	_, _ = fmt.Fprintf(c.w, "POST /publish/%d HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\nContent-Length: %d\r\n\r\n", stream, c.host, len(message))
	_, err := c.w.Write(message)
	return err
}

// token takes the right to send a request, of which there are few.
func (c *nchanPublisher) token(ctx context.Context) error {
	select {
	case _, ok := <-c.taken:
		return c.ended(ok)
	default:
	}
	if err := c.w.Flush(); err != nil {
		return err
	}
	select {
	case _, ok := <-c.taken:
		return c.ended(ok)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *nchanPublisher) ended(ok bool) error {
	if ok {
		return nil
	}
	return fmt.Errorf("publishing to Nchan ended: %w", c.err)
}

// answered waits until all requests were answered.
func (c *nchanPublisher) answered(ctx context.Context) error {
	for range nchanAhead {
		if err := c.token(ctx); err != nil {
			return err
		}
	}
	for range nchanAhead {
		c.taken <- struct{}{}
	}
	return nil
}

// read reads the answers until one is wrong or the connection ends.
func (c *nchanPublisher) read() {
	defer close(c.taken)
	r := bufio.NewReaderSize(c.conn, 64<<10)
	for told := range c.asked {
		id, err := readAnswer(r)
		if err != nil {
			c.err = err
			return
		}
		if told != nil {
			told(id)
		}
		c.taken <- struct{}{}
	}
}

// readAnswer reads the answer to a publish and returns the message's id.
func readAnswer(r *bufio.Reader) (id string, err error) {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusAccepted {
		return "", fmt.Errorf("it answered %s", strings.TrimSpace(resp.Status))
	}
	_, rest, ok := bytes.Cut(body, []byte(`"last_message_id": "`))
	text, _, ok2 := bytes.Cut(rest, []byte(`"`))
	if !ok || !ok2 {
		return "", fmt.Errorf("its answer has no id: %.100q", body)
	}
	return string(text), nil
}
