package session

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"rejoin/shared/flagtype"
	"rejoin/shared/must"
)

// index represents the copy of the registry.
type index struct {
	mu   sync.Mutex
	all  Usage
	held map[Holder]Usage
}

func (i *index) usage(of Holder) (all, own Usage) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.all, i.held[of]
}

func (i *index) put(rec Record) Usage {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.held == nil {
		i.held = map[Holder]Usage{}
	}
	i.all = i.all.Plus(rec.Usage())
	i.held[rec.Holder()] = i.held[rec.Holder()].Plus(rec.Usage())
	return i.all
}

// recordOf returns the record of a new session with so many bytes of metadata.
func recordOf(owner string, metadata int) Record {
	if metadata == 0 {
		return New("s", owner, nil, time.Now())
	}
	return New("s", owner, []byte(`{"x":"`+strings.Repeat("x", metadata-8)+`"}`), time.Now())
}

func reasonOf(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	full, ok := errors.AsType[*FullError](err)
	if !ok {
		t.Fatal(err)
	}
	return full.Reason
}

func TestSessionLimits(t *testing.T) {
	type step struct {
		owner    string
		metadata int
		times    int
		then     string // why the next one is not opened
	}
	for name, test := range map[string]struct {
		sessions, metadata int64
		steps              []step
	}{
		"no shares":                  {8, -1, []step{{"", 0, 8, FullSessions}}},
		"an owner has a share":       {8, -1, []step{{"alice", 0, 6, FullShare}, {"bob", 0, 2, FullSessions}, {"carol", 0, 0, FullSessions}}},
		"others fill the most of it": {8, -1, []step{{"", 0, 6, ""}, {"alice", 0, 2, FullSessions}}},
		"one is everybody's share":   {4, -1, []step{{"alice", 0, 3, FullShare}, {"bob", 0, 1, FullSessions}}},
		"too few to share":           {2, -1, []step{{"alice", 0, 2, FullSessions}}},
		"metadata":                   {-1, 160, []step{{"", 20, 8, FullMetadata}, {"", 0, 9, ""}}},
		"a share of metadata":        {0, 160, []step{{"alice", 20, 6, FullShare}, {"alice", 0, 9, ""}, {"bob", 20, 2, FullMetadata}}},
		"more metadata than all":     {-1, 160, []step{{"", 161, 0, FullMetadata}, {"", 160, 1, FullMetadata}}},
		"no limit":                   {-1, 0, []step{{"alice", 20, 99, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, opened := range []bool{false, true} { // or still being opened
				there := &index{}
				l := NewLimits(LimitsConfig{test.sessions, flagtype.Bytes(test.metadata)}, there.usage)
				for _, step := range test.steps {
					for i := range step.times + 1 {
						if i == step.times && step.then == "" {
							break
						}
						rec := recordOf(step.owner, step.metadata)
						leave, err := l.Enter(rec)
						if got := reasonOf(t, err); i < step.times && err != nil || i == step.times && got != step.then {
							t.Fatalf("%+v: number %d: %q, %v", step, i+1, got, err)
						}
						if err == nil && opened {
							there.put(rec)
							leave()
						}
					}
				}
				if opened && (len(l.opening) > 0 || l.all != Usage{}) {
					t.Errorf("%+v are being opened: %v", l.all, l.opening)
				}
			}
		})
	}
}

func TestSessionLimits_SessionIsNotOpened(t *testing.T) {
	there := &index{}
	l := NewLimits(LimitsConfig{1, 20}, there.usage)
	for range 3 {
		leave := must.Value(l.Enter(recordOf("", 20)))(t)
		if _, err := l.Enter(recordOf("", 0)); reasonOf(t, err) != FullSessions {
			t.Errorf("while it is being opened: %v", err)
		}
		leave()
	}
	if l.Share() != 0 || len(l.opening) > 0 || l.all != (Usage{}) {
		t.Errorf("%v are taken, %+v", l.Share(), l.opening)
	}
}

func TestSessionLimits_Half(t *testing.T) {
	for whole, half := range map[LimitsConfig]LimitsConfig{{30000, 16777217}: {15000, 8388609}, {1, 0}: {1, 0}, {-1, 2}: {-1, 1}} {
		if got := whole.Half(); got != half {
			t.Errorf("half of %+v is %+v", whole, got)
		}
	}
}

// Sessions that are being opened count, so no limit is exceeded; refused ones are tried again.
func TestSessionLimits_ManyAtOnce(t *testing.T) {
	const most = 40
	there := &index{}
	l := NewLimits(LimitsConfig{most, 20 * most}, there.usage)
	var all sync.WaitGroup
	for i := range 4 * most {
		all.Go(func() {
			rec := recordOf(fmt.Sprint("owner ", i%8), 20)
			leave, err := l.Enter(rec)
			if err != nil {
				reasonOf(t, err)
				return
			}
			defer leave()
			if i%5 == 0 {
				return // it is not opened
			}
			if now := there.put(rec); now.Sessions > most || now.MetadataBytes > 20*most {
				t.Errorf("there are %+v", now)
			}
		})
	}
	all.Wait()
	if len(l.opening) > 0 || l.all != (Usage{}) {
		t.Errorf("%+v are being opened at the end", l.opening)
	}
	for i := 0; there.all.Sessions < most; i++ {
		rec := recordOf(fmt.Sprint("another ", i), 20)
		leave, err := l.Enter(rec)
		if err != nil {
			t.Fatalf("with %+v: %v", there.all, err)
		}
		there.put(rec)
		leave()
	}
}

func TestSessionLimits_Share(t *testing.T) {
	there := &index{}
	l := NewLimits(LimitsConfig{10, 100}, there.usage)
	there.put(recordOf("alice", 20))
	if l.Share() != 0.2 {
		t.Errorf("%v of the metadata are taken", l.Share())
	}
	for range 3 {
		there.put(recordOf("", 0))
	}
	if l.Share() != 0.4 {
		t.Errorf("%v of the sessions are taken", l.Share())
	}
	if full := NewLimits(LimitsConfig{-1, 0}, there.usage).Share(); full != 0 {
		t.Errorf("%v without limits", full)
	}
}
