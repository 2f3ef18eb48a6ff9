package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"rejoin/shared/must"
)

func TestCache_Expiry(t *testing.T) {
	m := &moving{}
	v := must.Value(newVerifier(Config{Auth: ModeJWT, Audience: "rejoin", SecretFile: write(t, []byte(secret))}, quiet, m.now))(t)
	find, count := v.find, 0
	v.find = func(ctx context.Context, algorithm, id string) (any, error) {
		count++
		return find(ctx, algorithm, id)
	}
	token := sign(t, jwt.SigningMethodHS256, []byte(secret), with("exp", noon.Add(90*time.Second).Unix()))
	expect := func(looks int, want error) {
		t.Helper()
		g, err := v.Verify(t.Context(), token)
		if !errors.Is(err, want) || err == nil && g.Subject != "alice" || count != looks {
			t.Errorf("%+v, %v after %d looks, want %v after %d", g, err, count, want, looks)
		}
	}
	expect(1, nil)
	expect(1, nil)
	m.pass(memoryAge - 1)
	expect(1, nil)
	m.pass(1)
	expect(2, nil)
	m.pass(90*time.Second + Leeway - memoryAge - 1)
	expect(2, nil)
	m.pass(1)
	expect(3, ErrExpired) // though it was checked less than a minute ago
	bad := token[:len(token)-4] + "AAAA"
	for range 2 {
		if _, err := v.Verify(t.Context(), bad); err == nil {
			t.Error("a token that is like a good one is taken")
		}
	}
	if count != 5 {
		t.Errorf("%d looks: a bad token was remembered", count)
	}
}

// After the wall clock jumps forward, or the machine has slept, the monotonic clock lags: by that clock the token
// was remembered a moment ago.
func TestCache_ClockJumps(t *testing.T) {
	m, now := newMemory(), time.Now()
	m.Add(sha256.Sum256([]byte("token")), remembered{Grants{Subject: "alice", Expires: now.Round(0)}, now.Add(memoryAge)})
	if g, ok := m.recall("token", now); ok {
		t.Errorf("accepted after its expiry: %+v", g)
	}
}

func TestCache_Bounded(t *testing.T) {
	m := newMemory()
	grants := Grants{Subject: "alice", Expires: noon.Add(time.Hour)}
	m.remember("used", grants, noon)
	for i := range 3 * memorySize {
		m.remember(fmt.Sprint(i), grants, noon)
		if _, ok := m.recall("used", noon); !ok {
			t.Fatalf("forgotten after %d others", i)
		}
		if n := m.Len(); n > memorySize {
			t.Fatalf("%d are remembered", n)
		}
	}
	if _, ok := m.recall("0", noon); ok {
		t.Error("what was not used is remembered without end")
	}
}
