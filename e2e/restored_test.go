package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rejoin/deploy/credentials"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// privilegedCluster is three NATS servers in processes of their own, with the users of
// what is deployed.
type privilegedCluster struct {
	natsCluster
	keys string
}

func newPrivilegedCluster(t *testing.T) *privilegedCluster {
	t.Helper()
	c := &privilegedCluster{natsCluster: natsCluster{t: t}, keys: filepath.Join(t.TempDir(), "keys")}
	beside := configured(t, c.keys)
	var routes []string
	for range 3 {
		routes = append(routes, fmt.Sprintf("127.0.0.1:%d", natstest.FreePort(t)))
	}
	for i := range routes {
		n := newNATS(t, "")
		c.servers = append(c.servers, n)
		n.config = filepath.Join(filepath.Dir(beside), fmt.Sprintf("n%d.conf", i))
		n.configure(fmt.Sprintf("include 'nats.conf'\nhttp: '127.0.0.1:%d'\n", natstest.FreePort(t)) + clusterOf(i, routes))
		n.start()
	}
	return c
}

// service starts a program as its user.
func (c *privilegedCluster) service(user string, args ...string) *program {
	c.t.Helper()
	return startService(c.t, user, append(args, c.flag(), "--nats-nkey="+credentials.Seed(c.keys, user))...)
}

// exchange kills all servers, lets files be exchanged and starts them again.
func (c *privilegedCluster) exchange(files func(store, older string) error, older string) {
	c.t.Helper()
	for _, n := range c.servers {
		n.kill()
	}
	for i, n := range c.servers {
		must.NoError(c.t, files(n.store, filepath.Join(older, fmt.Sprint(i))))
		n.start()
	}
}

// Of a cluster that is put back to an older copy as a whole, an ID of an event that is lost
// names no other event, though one has its sequence: its holder receives a gap.
func TestClusterRestore_LostEventsAreAGap(t *testing.T) {
	t.Parallel()
	c := newPrivilegedCluster(t)
	programs := []*program{
		c.service("janitor", "--partitions=2", "--replicas=3", "--max-bytes=1073741824"),
		c.service("ingest"),
		c.service("sse-edge"),
	}
	path := streamPath("kept", "main")
	publish := func(from, to int) (id string) {
		t.Helper()
		for n := from; n <= to; n++ {
			waittest.Until(t, "a message is stored", func() bool {
				a := do(t, http.MethodPost, programs[1].url+path, numbered(n), "Content-Type", "application/json", "Idempotency-Key", fmt.Sprint(n))
				if a.status == http.StatusCreated {
					id = stringIn(t, a.body, "id")
				}
				return a.status == http.StatusCreated
			})
		}
		return id
	}
	page := func(after, last string) (body string) {
		t.Helper()
		waittest.Until(t, "the page shows "+last, func() bool {
			a := do(t, http.MethodGet, programs[2].url+path+"?after="+after, "", "Accept", "application/json")
			body = a.body
			return a.status == http.StatusOK && strings.Contains(body, last)
		})
		return body
	}
	older := t.TempDir()
	early := publish(1, 5)
	c.exchange(func(store, older string) error { return os.CopyFS(older, os.DirFS(store)) }, older)
	late := publish(6, 9)
	page(early, `"n":9}`) // somebody has seen it
	c.exchange(func(store, older string) error {
		if err := os.RemoveAll(store); err != nil {
			return err
		}
		return os.CopyFS(store, os.DirFS(older))
	}, older)
	publish(101, 110) // beyond the place that late names

	body := page(late, `"n":110}`)
	unattended := false // after 10 s without a janitor, a service goes on in the generation before
	for _, p := range programs[1:] {
		unattended = unattended || strings.Contains(p.log.String(), "no janitor has looked at a partition")
	}
	if rolledBack := strings.Contains(body, `"reason":"rolled_back","certain":true`) && strings.Contains(body, `"n":101}`); !rolledBack && !unattended {
		t.Errorf("what follows the event that was lost is %s", body)
	}
	body = page(early, `"n":110}`)
	if strings.Contains(body, `"reason"`) || !strings.Contains(body, `"n":101}`) {
		t.Errorf("what follows the event that is still there is %s", body)
	}
	wereAllowed(t, programs)
}
