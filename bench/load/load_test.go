package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestBlock_OrderLossAndDuplicates(t *testing.T) {
	message := func(id string, n int) string {
		return fmt.Sprintf("id: %s\ndata: {\"params\":{\"n\":%d,\"t\":12,\"pad\":\"\"}}\n", id, n)
	}
	ours := []string{"event: connect\nid: a_0000000_4\ndata: {}\n", message("a_b_0000000_5", 7), "event: cursor\nid: x_0000000_6\ndata: {}\n", message("a_0000000_9", 8)}
	for name, c := range map[string]struct {
		blocks []string
		want   string // of the error; empty means none
	}{
		"as it should be": {ours, ""},
		"loss":            {[]string{message("a_0000000_5", 8)}, "got message 8, want 7"},
		"duplicate":       {append(ours[:4:4], message("a_0000000_10", 8)), "got message 8, want 9"},
		"order of ids":    {append(ours[:4:4], message("a_0000000_9", 9)), "sequence 9 came after 9"},
		"no sequence":     {[]string{message("1234567:0", 7)}, "has no sequence"},
		"bad sequence":    {[]string{message("a_0000000_5.1", 7)}, "no number"},
		"gap":             {[]string{"event: gap\nid: a_0000000_5\ndata: {}\n"}, "gap"},
		"no number":       {[]string{"id: a_0000000_5\ndata: {}\n"}, `no "n":`},
	} {
		t.Run(name, func(t *testing.T) {
			conn := loadConn{next: 7}
			err := error(nil)
			for _, b := range c.blocks {
				if _, _, err = conn.block([]byte(b), true); err != nil {
					break
				}
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
	conn := loadConn{next: 7}
	for n, id := range []string{"1234567:0", "1234567:1", "1234560:0"} { // Nchan's have no order
		if kind, sent, err := conn.block([]byte(message(id, 7+n)), false); kind != blockMessage || sent != 12 || err != nil {
			t.Errorf("%s is %d, %d, %v", id, kind, sent, err)
		}
	}
	if string(conn.id) != "1234560:0" {
		t.Errorf("the last id is %s", conn.id)
	}
}

// The message's members have to be found whatever the id.
func TestReadStamp(t *testing.T) {
	id := strings.Repeat("x", 40) + "_0000000_18446744073709551"
	for _, m := range [][]byte{Stamped(1_000_000, MessageBytes), Varied(1_000_000, 9999)} {
		if len(m) != MessageBytes {
			t.Errorf("a message has %d bytes", len(m))
		}
		conn := loadConn{next: 1_000_000}
		block := append([]byte("id: "+id+"\ndata: "), append(m, '\n')...)
		if kind, sent, err := conn.block(block, true); kind != blockMessage || err != nil || time.Since(time.Unix(0, sent)) > time.Minute {
			t.Errorf("the block is %d, %d, %v", kind, sent, err)
		}
		if err := event.CheckMessage(m); err != nil {
			t.Errorf("the message is not valid: %v", err)
		}
	}
}

func TestBlock_AllocatesNothing(t *testing.T) {
	block := append([]byte("id: a_0000000_1\ndata: "), append(Stamped(1, MessageBytes), '\n')...)
	conn := loadConn{id: make([]byte, 0, 64)}
	if n := testing.AllocsPerRun(100, func() {
		conn.next, conn.sequence = 1, 0
		if _, _, err := conn.block(block, true); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a message", n)
	}
}

func TestCursor_IsAnEventID(t *testing.T) {
	gens := []event.Generation{{ID: "one", Start: 1}}
	id, err := event.ParseID(cursorOf(eventlog.State{Origin: "one", Generations: gens}, 1234, 56))
	if err != nil || id.Sequence != 56 || id.Stream != "1234" {
		t.Fatal(id, err)
	}
	for _, life := range []string{"", "opened"} {
		place := event.TagParts{Origin: "one", Session: SessionOf(1234), Life: life, Stream: "1234"}
		if verdict, _ := event.Resolve(id, place, append(gens, event.Generation{ID: "two", Start: 100})); verdict != event.Good {
			t.Errorf("the id is %d", verdict)
		}
	}
}

// scripted is a server that writes one script to each connection, then ends it.
func scripted(t *testing.T, scripts ...string) (addr string, requests func() []string) {
	t.Helper()
	ln := must.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	var all sync.WaitGroup
	var got []string
	all.Go(func() {
		for _, script := range scripts {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			request := ""
			for r := bufio.NewReader(c); !strings.HasSuffix(request, "\r\n\r\n"); {
				line, err := r.ReadString('\n')
				if err != nil {
					break
				}
				request += line
			}
			got = append(got, request)
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n" + script))
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = ln.Close(); all.Wait() })
	return ln.Addr().String(), func() []string { all.Wait(); return got }
}

func framed(from, to int) string {
	var b strings.Builder
	b.WriteString(": open\n\n")
	for n := from; n <= to; n++ {
		fmt.Fprintf(&b, "id: s_0000000_%d\ndata: %s\n\n", n+1, Stamped(n, 200))
	}
	return b.String()
}

func TestStorm_ResumesWithNewestID(t *testing.T) {
	addr, requests := scripted(t, "retry: 1\n\n", "retry: 1\n"+framed(5, 6)+"id: s_00", framed(7, 9))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l, err := New(ctx, Crowd{
		Clients: 1, AtOnce: true, After: func(int) (string, int) { return "s_0000000_5", 5 },
		Target: Target{Addr: addr, Sequenced: true, Path: func(int) string { return "/x" }},
	})
	must.NoError(t, err)
	defer l.Close()
	must.NoError(t, l.WaitFor(ctx, 5))
	for i, id := range []string{"s_0000000_5", "s_0000000_5", "s_0000000_7"} {
		if r := requests()[i]; !strings.HasPrefix(r, "GET /x HTTP/1.1\r\n") || !strings.Contains(r, "\r\nLast-Event-ID: "+id+"\r\n") {
			t.Errorf("request %d is %q, want id %s", i, r, id)
		}
	}
}

func TestLoad_ConnectionEnds(t *testing.T) {
	addr, _ := scripted(t, framed(0, 2))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l, err := New(ctx, Crowd{Clients: 1, Target: Target{Addr: addr, Sequenced: true, Path: func(int) string { return "/x" }}})
	if err == nil {
		err = l.WaitFor(ctx, 4)
		l.Close()
	}
	if !errors.Is(err, errEnded) {
		t.Errorf("the error is %v", err)
	}
}
