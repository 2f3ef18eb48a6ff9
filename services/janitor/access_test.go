package janitor

import (
	"net/http"
	"strings"
	"testing"

	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/web"
	"rejoin/shared/web/webtest"
)

func TestAccess_Admins(t *testing.T) {
	access := must.Value(web.NewAccess(web.AccessConfig{Config: authtest.Config(t)}, daemon.NewEnv(nil)))(t)
	cfg := quick()
	cfg.Access = access
	r := begin(t, natstest.Start(t), eventlog.Settings{}, cfg)
	must.Value(r.b.Sessions.Create(t.Context(), session.New("s", "alice", nil, midday)))(t)
	owner := authtest.Of(t, "alice", "*")
	admin := authtest.Token(t, "root", func(token *auth.Token) { token.Admin = true })
	for _, tt := range []struct {
		path, token string
		status      int
		body        string
	}{
		{"/v1/sessions", "", 401, `"unauthorized"`},
		{"/v1/sessions/s", "", 401, `"unauthorized"`},
		{"/v1/sessions", owner, 403, `"insufficient_scope"`},
		{"/v1/sessions/s", owner, 403, `"insufficient_scope"`},
		{"/v1/sessions/nothing", owner, 403, `"insufficient_scope"`},
		{"/v1/sessions", admin, 200, `"owner":"alice"`},
		{"/v1/sessions/s", admin, 200, `"owner":"alice"`},
		{"/v1/sessions/s/connections", owner, 403, `"insufficient_scope"`},
		{"/v1/sessions/s/timeline", owner, 403, `"insufficient_scope"`},
		{"/v1/gaps", owner, 403, `"insufficient_scope"`},
		{"/v1/limits", owner, 403, `"insufficient_scope"`},
		{"/v1/sessions/s/connections", admin, 200, `"connections":[]`},
		{"/v1/sessions/s/timeline", admin, 200, `"published":[]`},
		{"/v1/gaps", admin, 200, `"gaps":[]`},
		{"/v1/limits", admin, 200, `"sessions":[]`},
		{"/v1/sessions/nothing", admin, 404, `"not_found"`},
		{"/v1/sweep", "", 401, `"unauthorized"`},
		{"/v1/sweep", owner, 403, `"insufficient_scope"`},
		{"/v1/sweep?dry_run=true", owner, 403, `"insufficient_scope"`},
		{"/v1/sweep?dry_run=x", owner, 403, `"insufficient_scope"`},
		{"/v1/sweep?dry_run=true", admin, 200, `"removals":[]`},
		{"/v1/sweep", admin, 200, `"removed":{}`},
		{"/v1/sweep?access_token=" + admin, "", 400, `"token_in_url"`},
	} {
		method := http.MethodGet
		if strings.HasPrefix(tt.path, "/v1/sweep") {
			method = http.MethodPost
		}
		var headers []string
		if tt.token != "" {
			headers = []string{"Authorization", "Bearer " + tt.token}
		}
		if a := webtest.Ask(t, method, "http://"+r.ln.Addr().String()+tt.path, "", headers...); a.Status != tt.status || !strings.Contains(a.Text, tt.body) {
			t.Errorf("%s: %d %s, want %d with %s", tt.path, a.Status, a.Text, tt.status, tt.body)
		}
	}
}

func TestAccess_PublicAddress(t *testing.T) {
	cfg := quick()
	cfg.JanitorAddr = ":0"
	if _, err := New(cfg, nil, daemon.NewEnv(nil)); err == nil || !strings.Contains(err.Error(), "--janitor-addr :0") {
		t.Error(err)
	}
}
