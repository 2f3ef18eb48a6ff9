package request_test

import (
	"slices"
	"testing"

	"rejoin/services/ingest/problem"
	"rejoin/services/ingest/request"
	"rejoin/shared/auth"
	"rejoin/shared/event"
)

func FuzzSessionBody(f *testing.F) {
	for _, body := range []string{`{}`, `{"session":"s","metadata":{"a":1}}`, `{"session":null}`, `[]`, `null`, "{\"metadata\":{\"\xff\":1}}", `{"session":"a","session":"*"}`, `{"owner":"user-1","members":["b","a*","b"]}`, `{"members":[null]}`, `{"members":null}`, `{"owner":"\ud800"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := request.ParseSession(body)
		if err != nil {
			if p := problem.Of(err); p.Status >= 500 {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		if req.Name != "" && event.CheckSession(req.Name) != nil {
			t.Errorf("%q gives the name %q", body, req.Name)
		}
		if len(req.Members) > request.MaxMembers || !slices.IsSorted(req.Members) || len(req.Members) != len(slices.Compact(slices.Clone(req.Members))) {
			t.Errorf("%q gives the members %q", body, req.Members)
		}
		for _, m := range req.Members {
			if err := auth.Pattern(m).CheckSubject(); err != nil {
				t.Errorf("%q gives the member %q", body, m)
			}
		}
		if req.Owner != "" && auth.CheckSubject(req.Owner) != nil {
			t.Errorf("%q gives the owner %q", body, req.Owner)
		}
		if req.Metadata != nil && (req.Metadata[0] != '{' || len(req.Metadata) > request.MaxMetadata) {
			t.Errorf("%q gives the metadata %q", body, req.Metadata)
		}
	})
}
