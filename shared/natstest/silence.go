package natstest

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"

	"rejoin/shared/must"
)

// Silence is a [Link] on which some requests to JetStream get no answer, as while a leader changes.
type Silence struct {
	Link

	request string
	left    atomic.Int64 // of the requests that get none
}

const apiPrefix, silentPrefix = "$JS.API.", "NO.ANSW." // of one length

// NewSilence returns a link to a server, for requests whose subject begins with the given text after $JS.API.
func NewSilence(t testing.TB, srv *Server, request string) *Silence {
	t.Helper()
	nc := srv.Connect()
	must.Value(nc.SubscribeSync(silentPrefix + ">"))(t)
	must.NoError(t, nc.Flush())
	s := &Silence{request: apiPrefix + request}
	s.Before = s.before
	return s
}

// Next makes the next n requests get no answer.
func (s *Silence) Next(n int64) { s.left.Store(n) }

func (s *Silence) before(data []byte) {
	if at := bytes.Index(data, []byte(s.request)); at >= 0 && s.left.Load() > 0 {
		s.left.Add(-1)
		copy(data[at:], strings.Replace(s.request, apiPrefix, silentPrefix, 1))
	}
}
