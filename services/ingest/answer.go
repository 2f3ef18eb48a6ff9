package ingest

import (
	"encoding/json"

	"rejoin/shared/web"
)

// maxErrors is how many messages a summary names that were not stored, and how many a batch may
// have that are refused before they are handed to the log: behind those it stops.
const maxErrors = 1000

// summary is the answer to the messages of one request.
type summary struct {
	// Accepted counts the messages that are stored, Duplicates those of them that were
	// before. Refused are not stored; Unknown have an unknown outcome.
	Accepted   int `json:"accepted"`
	Duplicates int `json:"duplicates"`
	Refused    int `json:"refused"`
	Unknown    int `json:"unknown"`
	// LastID is the event ID of the last one that is stored.
	LastID *string `json:"lastId"`
	// Errors names the first that are not stored, or whose outcome is unknown.
	Errors []refusal `json:"errors"`
	// Stopped says which message was the first that was not tried, and why.
	Stopped *refusal `json:"stopped"`
}

// refusal says why a message is not stored.
type refusal struct {
	Index  int      `json:"index"`
	Code   web.Code `json:"code"`
	Detail string   `json:"detail,omitempty"`
}

// acceptance says that a message is stored.
type acceptance struct {
	Index int `json:"index"`
	stored
}

func newSummary() *summary { return &summary{Errors: []refusal{}} }

// add takes in the result of the next message.
func (s *summary) add(r result) {
	if r.problem == nil {
		s.Accepted++
		if r.Duplicate {
			s.Duplicates++
		}
		s.LastID = &r.ID
		return
	}
	if r.problem.Code == web.CodePublishUnknown {
		s.Unknown++
	} else {
		s.Refused++
	}
	if len(s.Errors) < maxErrors {
		s.Errors = append(s.Errors, r.refusal())
	}
}

func (s *summary) end(at *stop) {
	if at != nil {
		s.Stopped = &refusal{at.index, at.problem.Code, at.problem.Detail}
	}
}

// nothing returns the problem of a request of which nothing was tried, or nil.
func (s *summary) nothing(at *stop) *web.Problem {
	if at == nil || s.Accepted+s.Refused+s.Unknown > 0 {
		return nil
	}
	return at.problem
}

func (r result) refusal() refusal { return refusal{r.index, r.problem.Code, r.problem.Detail} }

// line returns the result as a line of NDJSON.
func (r result) line() []byte {
	if r.problem != nil {
		return ndjson(r.refusal())
	}
	return ndjson(acceptance{r.index, r.stored})
}

// ndjson returns v, which always can be marshalled, as a line.
func ndjson(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return append(b, '\n')
}
