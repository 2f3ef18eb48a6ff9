// Package ask lets a janitor answer for the whole log: each holds some of the partitions, so
// it asks the others over NATS and merges their answers with its own.
//
//	all janitors   "who holds which partitions?"                  mcp.janitor.ask
//	one janitor    a question about partitions that it holds       mcp.janitor.ask.<janitor>
//
// A question names the partitions that its answer is to be about, and each partition is asked of
// one janitor: two that hold it for a moment do not count it twice. Questions and answers are
// JSON; a long answer is sent in parts.
package ask

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/inspect"
)

// Subject is the one on which every janitor answers with its [Holding], in no queue group. Below it, each
// takes questions under its own name.
const Subject = "mcp.janitor.ask"

func subjectOf(janitor string) string { return Subject + "." + janitor }

// maxPartitions bounds a question; a log has fewer.
const maxPartitions = 10_000

// partsHeader is how many parts of the answer follow. An answer without bytes is one that is
// larger than maxBytes.
const partsHeader = "Rejoin-Parts-Left"

// Holding lists the partitions that a janitor holds.
type Holding struct {
	Janitor string `json:"janitor"`
	// Complete are those of which its ledger is complete; of the others it cannot answer yet.
	Complete   []int `json:"complete,omitempty"`
	Incomplete []int `json:"incomplete,omitempty"`
}

// sender returns the name of the janitor, or nothing if the holding is not valid: the name is part of a subject.
func (h Holding) sender() string {
	if event.Token(h.Janitor) != h.Janitor || strings.ContainsAny(h.Janitor, ".*>") || len(h.Complete)+len(h.Incomplete) > maxPartitions {
		return ""
	}
	return h.Janitor
}

// About is the kind of a question.
type About string

const (
	// Rows asks for a page of the list of sessions, Question.List.
	Rows About = "rows"
	// Infos asks for the infos of Question.Sessions.
	Infos About = "infos"
	// Detail asks for all data on Question.Session.
	Detail About = "detail"
	// Timeline asks for the newest Question.Limit entries of Question.Session, and for
	// Question.Cursors.
	Timeline About = "timeline"
	// Cursors asks for Question.Cursors.
	Cursors About = "cursors"
	// Limits asks for the Question.Limit sessions that are the closest to a limit, and for sums.
	Limits About = "limits"
	// DryRun asks for the removals that a sweep would make.
	DryRun About = "dry_run"
	// Sweep asks for a sweep.
	Sweep About = "sweep"
)

// Question is a question to a janitor. The answer is about Partitions alone.
type Question struct {
	About      About    `json:"about"`
	Partitions []int    `json:"partitions"`
	List       *List    `json:"list,omitempty"`
	Session    string   `json:"session,omitempty"`
	Sessions   []string `json:"sessions,omitempty"` // at most [MaxRows]
	Limit      int      `json:"limit,omitempty"`    // at most [MaxRows]
	// Share is from which share of a limit on a session is close to it, in hundredths.
	Share   int      `json:"share,omitempty"`
	Cursors []Cursor `json:"cursors,omitempty"` // at most [inspect.MaxItems]
}

// Cursor is the sequence up to which a client has everything.
type Cursor struct {
	Session string `json:"session"`
	// Stream is empty for all streams of the session.
	Stream   string `json:"stream,omitempty"`
	Sequence uint64 `json:"sequence"`
	// Time is when the client had the cursor; zero: now. A cursor of an earlier session of the name has no event ID.
	Time time.Time `json:"time,omitzero"`
	// Count asks how many events lie after it.
	Count bool `json:"count,omitempty"`
}

// Parse reads a question. The error wraps [ErrInvalid].
func Parse(data []byte) (Question, error) {
	var q Question
	if err := json.Unmarshal(data, &q); err != nil {
		return Question{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := q.check(); err != nil {
		return Question{}, err
	}
	return q, nil
}

func (q Question) check() error {
	switch {
	case len(q.Partitions) == 0 || len(q.Partitions) > maxPartitions || slices.Min(q.Partitions) < 0:
		return fmt.Errorf("%w: it names no partitions", ErrInvalid)
	case len(q.Sessions) > MaxRows || q.Limit < 0 || q.Limit > MaxRows || len(q.Cursors) > inspect.MaxItems || q.Share < 0 || q.Share > 100:
		return fmt.Errorf("%w: %d sessions, %d cursors, limit %d, share %d", ErrInvalid, len(q.Sessions), len(q.Cursors), q.Limit, q.Share)
	}
	for _, name := range q.Names() {
		if err := event.CheckSession(name); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	switch q.About {
	case Rows:
		if q.List == nil {
			return fmt.Errorf("%w: it names no page", ErrInvalid)
		}
		return q.List.check()
	case Detail, Timeline:
		if q.Session == "" {
			return fmt.Errorf("%w: it names no session", ErrInvalid)
		}
	case Infos, Cursors, Limits, DryRun, Sweep:
	default:
		return fmt.Errorf("%w: about %q", ErrInvalid, q.About)
	}
	return nil
}

// Names are those of all sessions in the question.
func (q Question) Names() []string {
	names := slices.Clone(q.Sessions)
	for _, c := range q.Cursors {
		names = append(names, c.Session)
	}
	if q.Session != "" {
		names = append(names, q.Session)
	}
	return names
}

// Answer is that of one janitor.
type Answer struct {
	// Partitions are those of the question that the answer is about.
	Partitions []int `json:"partitions"`

	Page Page `json:"page,omitzero"`
	// Infos are of those of Question.Sessions that lie in Partitions.
	Infos []ledger.SessionInfo `json:"infos,omitempty"`
	// Detail is absent when neither registry nor log have the session. Silent says that the
	// registry did not answer.
	Detail *ledger.SessionDetail `json:"detail,omitempty"`
	Silent bool                  `json:"silent,omitempty"`
	// Published are the newest entries, the newest first.
	Published []ledger.PublishedInfo `json:"published,omitempty"`
	// Cursors has one for each of Question.Cursors; those of other partitions are empty.
	Cursors []CursorInfo `json:"cursors,omitempty"`
	// Near are the first of Total.
	Near     []ledger.NearInfo `json:"near,omitempty"`
	Total    int               `json:"total,omitempty"`
	Retained ledger.Totals     `json:"retained,omitzero"`
	Stored   uint64            `json:"stored,omitempty"`
	// Removed counts, by reason, the entries that a sweep has removed or would remove; Left those that
	// are announced and not deleted yet.
	Removed map[ledger.Cause]int    `json:"removed,omitempty"`
	Left    map[eventlog.Reason]int `json:"left,omitempty"`
	// Removals are the largest ones of a dry run, and More says that there are others.
	Removals []ledger.RemovalInfo `json:"removals,omitempty"`
	More     bool                 `json:"more,omitempty"`
	Seconds  float64              `json:"seconds,omitempty"` // of the sweep
	Swept    Swept                `json:"swept,omitempty"`
}

// CursorInfo is the answer for a cursor.
type CursorInfo struct {
	// ID is its event ID; empty for the beginning of the log.
	ID     string `json:"id,omitempty"`
	Behind int    `json:"behind,omitempty"`
}

// Swept is the outcome of a sweep.
type Swept string

// A sweep is done, or unfinished, or could not begin.
const (
	Done       Swept = ""
	Unfinished Swept = "unfinished"
	NotBegun   Swept = "not_begun"
)
