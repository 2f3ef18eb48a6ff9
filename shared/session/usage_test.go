package session

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rejoin/shared/bucket"
	"rejoin/shared/must"
)

// usageOf is the usage of records, counted again. The metadata of each is a string of as many bytes
// as its life has.
func usageOf(records map[string]Record) map[Holder]Usage {
	sums := map[Holder]Usage{}
	for _, rec := range records {
		sums[rec.Holder()] = sums[rec.Holder()].Plus(Usage{1, int64(len(metadataOf(rec.Life)))})
	}
	return sums
}

func metadataOf(life string) json.RawMessage {
	if life == "" {
		return nil
	}
	return json.RawMessage(`{"x":"` + strings.Repeat("x", int(life[0])) + `"}`)
}

func (c *bucketCopy) check(t *rapid.T, what string) {
	sums, all := usageOf(c.records), Usage{}
	for of, sum := range sums {
		all = all.Plus(sum)
		if h := c.holders[of]; h == nil || h.Usage != sum || h.Holder != of {
			t.Fatalf("%s: of %+v: %+v, counted %+v", what, of, h, sum)
		}
	}
	if c.all != all || len(c.holders) != len(sums) {
		t.Fatalf("%s: %+v of %d holders, counted %+v of %d", what, c.all, len(c.holders), all, len(sums))
	}
	for k, rec := range c.records {
		if key(rec.Session) != k || c.bare != (rec.Metadata == nil) && rec.Life != "" {
			t.Fatalf("%s: %q has %+v", what, k, rec)
		}
	}
}

func TestUsage_IsTheSumOverTheRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bare := rapid.Bool().Draw(t, "bare")
		r := &Registry{bare: bare, copy: newBucketCopy(bare), log: slog.New(slog.DiscardHandler)}
		revision := uint64(0)
		draw := func(t *rapid.T) Record {
			rec := Record{
				Session: rapid.SampledFrom([]string{"a", "b", "a.b"}).Draw(t, "session"),
				Life:    rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "life"),
				State:   rapid.SampledFrom([]State{Open, Closed}).Draw(t, "state"),
				Owner:   rapid.SampledFrom([]string{"", "alice", "bob"}).Draw(t, "owner"),
				Client:  rapid.SampledFrom([]string{"", "192.0.2.1", "192.0.2.2"}).Draw(t, "client"),
			}
			rec.Metadata = metadataOf(rec.Life)
			rec.read()
			if revision++; rapid.Bool().Draw(t, "new") {
				rec.Revision = revision
			} else {
				rec.Revision = rapid.Uint64Range(0, revision).Draw(t, "revision")
			}
			return rec
		}
		t.Repeat(map[string]func(*rapid.T){
			"write":   func(t *rapid.T) { rec := draw(t); r.put(key(rec.Session), rec) },
			"correct": func(t *rapid.T) { rec := draw(t); r.correct(key(rec.Session), rec) },
			"show": func(t *rapid.T) {
				rec := draw(t)
				data := must.Value(json.Marshal(rec))(t)
				r.show(bucket.Entry{Key: key(rec.Session), Value: data, Revision: rec.Revision, Removed: rapid.Bool().Draw(t, "removed")})
			},
			"follow": func(*rapid.T) { r.next = newBucketCopy(bare) },
			"swap": func(*rapid.T) {
				if r.next != nil {
					r.swap()
				}
			},
			"": func(t *rapid.T) {
				r.copy.check(t, "the copy")
				if r.next != nil {
					r.next.check(t, "the next copy")
				}
				sums := usageOf(r.copy.records)
				for _, of := range []Holder{{}, {Owner: "alice"}, {Owner: "bob"}, {Client: "192.0.2.1"}, {Client: "192.0.2.2"}} {
					if all, own := r.Usage(of); all != r.copy.all || own != sums[of] {
						t.Fatalf("%+v: %+v, %+v, counted %+v", of, all, own, sums[of])
					}
				}
			},
		})
	})
}

// Neither the bucket nor the log has the client for which a session without an owner was created.
func TestUsage_ClientIsKept(t *testing.T) {
	r := &Registry{copy: newBucketCopy(true), log: slog.New(slog.DiscardHandler)}
	client := Holder{Client: "192.0.2.1"}
	show := func(life string, state State, revision uint64) {
		t.Helper()
		data := must.Value(json.Marshal(Record{Session: "s", Life: life, State: state}))(t)
		r.show(bucket.Entry{Key: "s", Value: data, Revision: revision})
	}
	expect := func(what string, want int64) {
		t.Helper()
		all, own := r.Usage(client)
		if own.Sessions != want || all.Sessions != 1 {
			t.Errorf("%s: %d sessions of %d are the client's", what, own.Sessions, all.Sessions)
		}
	}
	for i, shownFirst := range []bool{false, true} {
		life, revision := fmt.Sprint("l", i), uint64(10*i+1) //nolint:gosec // small
		rec := Record{Session: "s", Life: life, State: Open, Revision: revision, Client: client.Client}
		if shownFirst {
			show(life, Open, revision)
			expect("another life", 0)
		}
		r.put("s", rec)
		expect("written", 1)
		show(life, Open, revision)
		expect("shown", 1)
		r.next = newBucketCopy(true)
		show(life, Open, revision)
		r.swap()
		expect("copied again", 1)
		show(life, Closed, revision+1)
		expect("closed", 1)
	}
	r.show(bucket.Entry{Key: "s", Revision: 20, Removed: true})
	if all, own := r.Usage(client); all != (Usage{}) || own != all {
		t.Errorf("when it is removed: %+v, %+v", all, own)
	}
}
