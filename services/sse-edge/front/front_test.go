package front

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
	"rejoin/shared/web"
	"rejoin/shared/web/webtest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, webtest.IgnoreFasthttp()...)) }

// writePair writes a certificate of a name, and its key.
func writePair(t *testing.T, files Files, name string) {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert := must.Value(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	private := must.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	for file, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: cert}, files.Key: {Type: "PRIVATE KEY", Bytes: private}} {
		must.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
}

func newFiles(t *testing.T) Files {
	dir := t.TempDir()
	files := Files{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	writePair(t, files, "one")
	return files
}

// system is a Server in front of an edge's server.
type system struct {
	front   *Server
	url     string
	refused chan error
}

func start(t *testing.T, behind http.HandlerFunc) system {
	t.Helper()
	return startWithin(t, time.Minute, behind)
}

// startWithin is start with a limit for stalled writes.
func startWithin(t *testing.T, write time.Duration, behind http.HandlerFunc) system {
	t.Helper()
	return startBounded(t, write, nil, nil, behind)
}

// startBounded is startWithin with bounds of requests and of their files.
func startBounded(t *testing.T, write time.Duration, requests, files *quota.Pool, behind http.HandlerFunc) system {
	t.Helper()
	ln := must.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	s := must.Value(New(ln, newFiles(t), time.Minute, time.Minute, write, slog.New(slog.DiscardHandler)))(t)
	refused := make(chan error, 16)
	s.Bound(requests, files, func(net.Addr) string { return "" }, func(_ net.Addr, err error) { refused <- err })
	edge := &http.Server{Handler: behind, ReadHeaderTimeout: time.Minute}
	var both sync.WaitGroup
	both.Go(func() {
		if err := s.Serve(); err != nil {
			t.Error(err)
		}
	})
	if behind != nil { // else the test serves it
		both.Go(func() { _ = edge.Serve(s.Backend()) })
	}
	t.Cleanup(func() {
		_ = edge.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Stop(ctx)
		both.Wait()
	})
	return system{s, "https://" + ln.Addr().String(), refused}
}

// client returns a client of one protocol, which buffers so many bytes of an unread response.
func client(t *testing.T, http2 bool, buffer int) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a test's own
		Protocols:       protocols, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: buffer},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// each runs a test with a client of HTTP/1.1, and with one of HTTP/2.
func each(t *testing.T, behind http.HandlerFunc, test func(t *testing.T, s system, c *http.Client)) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP2_%t", http2), func(t *testing.T) { test(t, start(t, behind), client(t, http2, 0)) })
	}
}

// get returns the body of a response, which is closed when the test ends.
func get(ctx context.Context, t *testing.T, c *http.Client, url string) io.Reader {
	t.Helper()
	req := must.Value(http.NewRequestWithContext(ctx, http.MethodGet, url, nil))(t)
	resp, err := c.Do(req)
	must.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp.Body
}

func TestServer_PassesRequestsOn(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Keep-Alive", "timeout=5")
		w.Header().Add("X-Two", "1")
		w.Header().Add("X-Two", "2")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "%s %s %s %s %q %v %s", r.Method, r.RequestURI, r.Host, r.RemoteAddr, r.Header["X-Forwarded-Proto"], r.Header["Te"], body)
	}, func(t *testing.T, s system, c *http.Client) {
		for name, body := range map[string]io.Reader{"none": nil, "text": strings.NewReader("b"), "unknown length": io.MultiReader(strings.NewReader("b"))} {
			var local string
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { local = i.Conn.LocalAddr().String() }})
			req := must.Value(http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/a%2Fb/..%20?q=%00&r", body))(t)
			req.Header.Set("X-Forwarded-Proto", "http")
			req.Header.Set("Te", "trailers")
			req.Host = "name.example"
			resp, err := c.Do(req)
			must.NoError(t, err)
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			want := "POST /a%2Fb/..%20?q=%00&r name.example " + local + ` ["https"] [] `
			if body != nil {
				want += "b"
			}
			if err != nil || resp.StatusCode != http.StatusCreated || string(got) != want || resp.Header.Get("Keep-Alive") != "" || len(resp.Header["X-Two"]) != 2 {
				t.Errorf("%s: %s %q, %v, want %q", name, resp.Status, got, err, want)
			}
		}
	})
}

// The client receives a part of a response before the next one is written.
func TestServer_SendsAtOnce(t *testing.T) {
	next := make(chan struct{})
	each(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = io.WriteString(w, "one")
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	}, func(t *testing.T, s system, c *http.Client) {
		body := get(t.Context(), t, c, s.url)
		for range 3 {
			part := make([]byte, 3)
			must.Value(io.ReadFull(body, part))(t)
			next <- struct{}{}
		}
		if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
			t.Errorf("%q, %v", rest, err)
		}
	})
}

// A response that breaks off must not look like a whole one.
func TestServer_ResponseBreaksOff(t *testing.T) {
	each(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, func(t *testing.T, s system, c *http.Client) {
		if got, err := io.ReadAll(get(t.Context(), t, c, s.url)); err == nil {
			t.Errorf("%q is taken for the whole", got)
		}
	})
}

// A refused request is answered although its body does not end.
func TestServer_AnswersBeforeTheEndOfTheBody(t *testing.T) {
	each(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	}, func(t *testing.T, s system, c *http.Client) {
		body, more := io.Pipe()
		defer func() { _ = more.Close() }()
		req := must.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, body))(t)
		resp, err := c.Do(req)
		must.NoError(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Error(resp.Status)
		}
	})
}

// A request that breaks off must not look like a whole one.
func TestServer_RequestBreaksOff(t *testing.T) {
	each(t, nil, func(t *testing.T, s system, c *http.Client) {
		app, read := web.NewApp(web.Config{Service: "test"}), make(chan error)
		web.Mount(app, web.Route{Method: http.MethodPost, Path: "/", Handler: func(c *fiber.Ctx) (err error) {
			for err == nil {
				_, err = web.StreamedBody(c).Read(make([]byte, 10))
				read <- err
			}
			return err
		}})
		ctx, cancel := context.WithCancel(t.Context())
		var both sync.WaitGroup
		defer both.Wait()
		defer cancel()
		both.Go(func() { _ = web.Serve(ctx, app, s.front.Backend(), time.Minute) })
		body, more := io.Pipe()
		req := must.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, body))(t)
		both.Go(func() {
			if resp, err := c.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		})
		must.Value(io.WriteString(more, "a part"))(t)
		must.NoError(t, <-read)
		_ = more.CloseWithError(errors.New("broken"))
		if err := <-read; errors.Is(err, io.EOF) {
			t.Error("it is taken for a whole one")
		}
	})
}

// The response begins before the body of the request ends.
func TestServer_BothDirectionsAtOnce(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(flusher{w, http.NewResponseController(w), true, time.NewTimer(time.Minute), time.Minute}, onlyReader{r.Body})
	}, func(t *testing.T, s system, c *http.Client) {
		body, more := io.Pipe()
		req := must.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, body))(t)
		go func() { _, _ = io.WriteString(more, "one") }()
		resp, err := c.Do(req)
		must.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		part := make([]byte, 3)
		for _, text := range []string{"one", "two"} {
			if _, err := io.ReadFull(resp.Body, part); err != nil || string(part) != text {
				t.Fatalf("%q, %v", part, err)
			}
			go func() { _, _ = io.WriteString(more, "two") }()
		}
		_ = more.Close()
	})
}

func TestServer_ClientGoes(t *testing.T) {
	gone := make(chan struct{})
	each(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		gone <- struct{}{}
	}, func(t *testing.T, s system, c *http.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		get(ctx, t, c, s.url)
		cancel()
		<-gone
	})
}

// A client that reads one of its streams does not wait for another one that it does not read.
func TestServer_StalledStream(t *testing.T) {
	stalled := make(chan error, 1)
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/quick" {
			_, _ = io.WriteString(w, "quick")
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(waittest.Timeout))
		part := bytes.Repeat([]byte("x"), 64<<10)
		for {
			if _, err := w.Write(part); err != nil {
				stalled <- err
				return
			}
		}
	})
	c := client(t, true, 64<<10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	get(ctx, t, c, s.url+"/endless")
	for range 3 {
		if got, err := io.ReadAll(get(t.Context(), t, c, s.url+"/quick")); err != nil || string(got) != "quick" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	select {
	case err := <-stalled:
		t.Errorf("the stream did not stall: %v", err)
	default:
	}
	cancel()
	if err := <-stalled; err == nil {
		t.Error("it was written to the end")
	}
}

// A client that does not read is disconnected, in both protocols, whatever else its connection does.
func TestServer_WriteStalls(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP2_%t", http2), func(t *testing.T) {
			ended := make(chan error, 1)
			s := startWithin(t, 50*time.Millisecond, func(w http.ResponseWriter, _ *http.Request) {
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(waittest.Timeout))
				part := bytes.Repeat([]byte("x"), 64<<10)
				for {
					if _, err := w.Write(part); err != nil {
						ended <- err
						return
					}
				}
			})
			req := must.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, s.url, nil))(t)
			if resp, err := client(t, http2, 64<<10).Do(req); err == nil { // else even the head took too long
				defer func() { _ = resp.Body.Close() }()
			}
			if err := waittest.Receive(t, "the write ends", ended); err == nil {
				t.Error("it was written to the end")
			}
		})
	}
}

func TestServer_Stop(t *testing.T) {
	each(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, func(t *testing.T, s system, c *http.Client) {
		body := get(t.Context(), t, c, s.url)
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.front.Stop(ctx)
		}()
		cancel()
		<-stopped
		if _, err := io.ReadAll(body); err == nil {
			t.Error("the stream has ended as a whole")
		}
	})
}

func TestServer_Expires(t *testing.T) {
	each(t, func(http.ResponseWriter, *http.Request) {}, func(t *testing.T, s system, c *http.Client) {
		req := must.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, s.url, http.NoBody))(t)
		resp, err := c.Do(req)
		must.NoError(t, err)
		_ = resp.Body.Close()
		if want := resp.TLS.PeerCertificates[0].NotAfter; !s.front.Expires().Equal(want) {
			t.Errorf("it expires at %s, and not %s", s.front.Expires(), want)
		}
	})
}

func TestFiles_Validate(t *testing.T) {
	for files, ok := range map[Files]bool{{}: true, {"c", "k"}: true, {"c", ""}: false, {"", "k"}: false} {
		if err := files.Validate(); (err == nil) != ok || files.On() != (files.Cert != "") {
			t.Errorf("%+v: %v", files, err)
		}
	}
	files := newFiles(t)
	must.NoError(t, os.Remove(files.Key))
	if _, err := New(nil, files, 0, 0, 0, nil); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "cannot use --tls-cert and --tls-key: ") {
		t.Error(err)
	}
}

// A changed certificate is served to later connections; files that do not fit together change
// nothing.
func TestFiles_AreReadAgain(t *testing.T) {
	files := newFiles(t)
	p := must.Value(files.load(slog.New(slog.DiscardHandler)))(t)
	now := time.Now()
	p.now = func() time.Time { return now }
	expect := func(name string) {
		t.Helper()
		cert, err := p.get(nil)
		if err != nil || cert.Leaf.DNSNames[0] != name {
			t.Errorf("%v, %v, want %s", cert.Leaf.DNSNames, err, name)
		}
	}
	change := func(name string, at time.Time) {
		t.Helper()
		writePair(t, files, name)
		for _, file := range []string{files.Cert, files.Key} { // however coarse the disk's clock is
			must.NoError(t, os.Chtimes(file, at, at))
		}
	}
	expect("one")
	change("two", now.Add(time.Hour))
	expect("one") // it has just looked
	now = now.Add(lookEvery)
	expect("two")
	key := must.Value(os.ReadFile(files.Key))(t)
	change("three", now.Add(2*time.Hour))
	third := must.Value(os.ReadFile(files.Key))(t)
	for _, content := range [][]byte{key, nil} { // the previous key, and half a rename
		now = now.Add(lookEvery)
		must.NoError(t, os.WriteFile(files.Key, content, 0o600))
		expect("two")
	}
	now = now.Add(lookEvery)
	must.NoError(t, os.WriteFile(files.Key, third, 0o600))
	expect("three")
}

// A connection of HTTP/2 has many requests, each of which counts, and has two files.
func TestForward_RequestsAreBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		requests, files int64
		why             error
	}{
		"requests": {2, 100, ErrTooManyRequests},
		"files":    {100, 5, errTooManyFiles},
	} {
		t.Run(name, func(t *testing.T) {
			requests, files := quota.NewPool(tt.requests), quota.NewPool(tt.files)
			release := make(chan struct{})
			s := startBounded(t, time.Minute, requests, files, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-release
			})
			c := client(t, true, 0)
			first, second := get(t.Context(), t, c, s.url), get(t.Context(), t, c, s.url)
			req := must.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, s.url, http.NoBody))(t)
			if resp, err := c.Do(req); err == nil {
				_ = resp.Body.Close()
				t.Error("a third request is served")
			}
			if err := waittest.Receive(t, "the request is reported", s.refused); !errors.Is(err, tt.why) {
				t.Error(err)
			}
			close(release)
			for _, body := range []io.Reader{first, second} {
				must.Value(io.ReadAll(body))(t)
			}
			waittest.Until(t, "all is given back", func() bool { return files.Used()+requests.Used() == 0 })
			must.Value(io.ReadAll(get(t.Context(), t, c, s.url)))(t)
		})
	}
}
