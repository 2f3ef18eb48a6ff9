package session_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"rejoin/shared/session"
)

func TestRetention_FromMetadata(t *testing.T) {
	for metadata, want := range map[string]session.Retention{
		``:                              {},
		`{}`:                            {},
		`{"user":1,"Retention":7}`:      {},
		`{"retention":{}}`:              {},
		`{"retention":{"maxEvents":5}}`: {MaxEvents: 5},
		`{"a":[],"retention":{"maxBytes":9007199254740993,"maxStreams":-1,"idleAfter":60}}`: {MaxBytes: 9007199254740993, MaxStreams: -1, IdleAfter: time.Minute},
		`{"retention":{"idleAfter":-1}}`:         {IdleAfter: -1},
		`{"retention":{"idleAfter":3153600000}}`: {IdleAfter: 3153600000 * time.Second},
		`{"retention":{"keepClosed":90}}`:        {KeepClosed: 90 * time.Second},
	} {
		if got, err := session.ParseRetention(json.RawMessage(metadata)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", metadata, got, err)
		}
	}
	for _, metadata := range []string{
		`[]`,
		`{"retention":null}`,
		`{"retention":[]}`,
		`{"retention":"long"}`,
		`{"retention":{"maxEvents":0}}`,
		`{"retention":{"maxEvents":-2}}`,
		`{"retention":{"maxEvents":1.5}}`,
		`{"retention":{"maxEvents":"1"}}`,
		`{"retention":{"maxEvents":null}}`,
		`{"retention":{"maxBytes":9223372036854775808}}`,
		`{"retention":{"idleAfter":3153600001}}`,
		`{"retention":{"keepClosed":3153600001}}`,
		`{"retention":{"keepClosed":-1}}`,
		`{"retention":{"maxevents":1}}`,
	} {
		if got, err := session.ParseRetention(json.RawMessage(metadata)); !errors.Is(err, session.ErrRetention) || got != (session.Retention{}) {
			t.Errorf("%s: %+v, %v", metadata, got, err)
		}
	}
}

// An earlier version applies the members that it knows of metadata that a later one has accepted: otherwise a session
// that may hold more than the others would be trimmed to their limits.
func TestRetention_OfALaterVersion(t *testing.T) {
	for metadata, want := range map[string]session.Retention{
		`{"retention":{"maxEvents":5,"maxAge":1}}`:                     {MaxEvents: 5},
		`{"retention":{"idleAfter":-1,"maxBytes":"1GB"}}`:              {IdleAfter: -1},
		`{"retention":{"maxStreams":-1,"keepClosed":-1}}`:              {MaxStreams: -1},
		`{"retention":{"keepClosed":60,"idleAfter":9000000000}}`:       {KeepClosed: time.Minute},
		`{"retention":{"maxBytes":7,"maxEvents":{"perMinute":1000}}}`:  {MaxBytes: 7},
		`{"retention":{"maxEvents":5,"maxBytes":9223372036854775808}}`: {MaxEvents: 5},
	} {
		if got, err := session.ParseRetention(json.RawMessage(metadata)); !errors.Is(err, session.ErrRetention) || got != want {
			t.Errorf("%s: %+v, %v", metadata, got, err)
		}
		if got := session.New("s", "", json.RawMessage(metadata), time.Now()).Retention; got != want {
			t.Errorf("%s: the record has %+v", metadata, got)
		}
	}
}

func TestRetention_Bounds(t *testing.T) {
	for _, tt := range []struct{ asked, all, most, want int64 }{
		{0, 100, 0, 100},
		{0, -1, 0, -1},
		{0, 100, 500, 100},
		{5, 100, 0, 5},
		{5, -1, 0, 5},
		{200, 100, 0, 100},
		{-1, 100, 0, 100},
		{200, 100, 500, 200},
		{600, 100, 500, 500},
		{-1, 100, 500, 500},
		{200, 100, 50, 100},
		{60, 100, 50, 60},
		{200, 100, -1, 200},
		{-1, 100, -1, -1},
		{-1, -1, 500, -1},
	} {
		if got := session.Within(tt.asked, tt.all, tt.most); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}
