package edgetest

import (
	"testing"
	"time"

	"rejoin/shared/auth/authtest"
	"rejoin/shared/daemon"
	"rejoin/shared/must"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
	"rejoin/shared/web"
)

// Origin is the origin of pages that [Access] accepts.
const Origin = "https://app.example"

// Access accepts only clients with a token, and pages of one origin.
func Access(t *testing.T) *web.Access {
	t.Helper()
	access, err := web.NewAccess(web.AccessConfig{Config: authtest.Config(t), CORSOrigins: []string{Origin}}, daemon.NewEnv(nil))
	must.NoError(t, err)
	return access
}

// Bearer returns the header with a token.
func Bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

// Create registers a session.
func (l *Log) Create(name, owner string) {
	l.t.Helper()
	must.Value(l.Backend.Sessions.Create(waittest.Context(l.t), session.New(name, owner, nil, time.Now())))(l.t)
}

// SetMembers replaces the members of a session, as ingest does.
func (l *Log) SetMembers(name string, members ...string) {
	l.t.Helper()
	must.Value(l.Backend.Sessions.SetMembers(waittest.Context(l.t), name, members, func(session.Record) error { return nil }))(l.t)
}
