package edge

import (
	"context"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/web"
)

const (
	// maxMethods bounds what every event is compared with.
	maxMethods = 32
	// maxMethodLen is in bytes.
	maxMethodLen = 256
)

// parseFilter reads the parameters "method", which may be given more than once and holds
// names with commas between them, and "level". Errors are problems with the code
// invalid_parameter.
func parseFilter(c *fiber.Ctx) (*delivery.Filter, error) {
	f := &delivery.Filter{}
	for _, value := range web.Queries(c, "method") {
		for method := range strings.SplitSeq(value, ",") {
			if !validMethod(method) {
				return nil, web.New(web.CodeInvalidParameter, `The parameter "method" names methods of up to `+strconv.Itoa(maxMethodLen)+
					` bytes, with commas between them; an asterisk stands for any end of a name.`)
			}
			f.Methods = append(f.Methods, method)
		}
	}
	slices.Sort(f.Methods)
	if f.Methods = slices.Compact(f.Methods); len(f.Methods) > maxMethods {
		return nil, web.New(web.CodeInvalidParameter, `The parameter "method" names more than `+strconv.Itoa(maxMethods)+" methods.")
	}
	level, given, err := web.Query(c, "level")
	if err != nil {
		return nil, err
	}
	if given {
		if f.Level = slices.Index(event.Levels, level); f.Level < 0 {
			return nil, web.New(web.CodeInvalidParameter, `The parameter "level" is one of `+strings.Join(event.Levels, ", ")+".")
		}
	}
	if len(f.Methods) == 0 && f.Level == 0 {
		return nil, nil
	}
	f.Text = strings.Join(append(f.Methods, event.Levels[f.Level]), ",")
	return f, nil
}

func validMethod(m string) bool {
	star := strings.IndexByte(m, '*')
	return m != "" && len(m) <= maxMethodLen && utf8.ValidString(m) && (star < 0 || star == len(m)-1)
}

// request is what a subscriber asks for.
type request struct {
	at    window.Place
	start cursor.Start
	// envelope wraps each message in an object that names its stream.
	envelope bool
	// filter says which events are shown; nil: all.
	filter *delivery.Filter
	// onGapError answers 410 instead of telling a gap in the stream.
	onGapError bool
	limit      int
	wait       time.Duration
	// expires is when the token does; zero without access control.
	expires time.Time
	// guest is who asks, if that is a member of the session.
	guest *guest
}

// Limits of a page.
const (
	defaultLimit = 100
	maxLimit     = 1000
	maxWait      = 60 * time.Second
)

func parse(c *fiber.Ctx) (request, error) {
	req := request{limit: defaultLimit}
	var err error
	if req.at.Session, err = name(c, "session", event.CheckSession); err != nil {
		return request{}, err
	}
	if c.Params("stream") != "" {
		if req.at.Stream, err = name(c, "stream", event.CheckStream); err != nil {
			return request{}, err
		}
	}
	if req.start, err = parseStart(c); err != nil {
		return request{}, err
	}
	if req.start.Last, err = web.Number(c, "last", 0, 1, maxLimit); err != nil {
		return request{}, err
	}
	if _, given, _ := web.Query(c, "from"); given && req.start.Last > 0 {
		return request{}, web.New(web.CodeInvalidParameter, `The parameters "from" and "last" are two places to begin at.`)
	}
	if req.onGapError, err = web.Choice(c, "on_gap", "error", "event", false); err != nil {
		return request{}, err
	}
	if req.envelope, err = web.Choice(c, "envelope", "true", "false", req.at.Stream == ""); err != nil {
		return request{}, err
	}
	if req.filter, err = parseFilter(c); err != nil {
		return request{}, err
	}
	if req.limit, err = web.Number(c, "limit", defaultLimit, 1, maxLimit); err != nil {
		return request{}, err
	}
	seconds, err := web.Number(c, "wait", 0, 0, int(maxWait/time.Second))
	req.wait = time.Duration(seconds) * time.Second
	return req, err
}

func name(c *fiber.Ctx, param string, check func(string) error) (string, error) {
	n, err := web.Param(c, param)
	if err != nil {
		return "", err
	}
	if err := check(n); err != nil {
		return "", web.Wrap(err, web.CodeInvalidName, "The "+param+" is not valid: "+err.Error()+".")
	}
	return n, nil
}

// openTimeout bounds what a subscriber may wait for before its first answer.
const openTimeout = 10 * time.Second

// open returns the reader of a request, or a problem.
func (s *Service) open(req request, limit window.Limits) (*cursor.Reader, error) {
	ctx, cancel := context.WithTimeout(s.base, openTimeout)
	defer cancel()
	r, err := s.parts.Open(ctx, req.at, req.start, limit)
	if err != nil {
		if cursor.Transient(err) {
			return nil, web.Wrap(err, web.CodeUnavailable, "The log cannot be reached at the moment.")
		}
		return nil, err
	}
	if req.start.After != "" {
		from := "window"
		if r.Came == cursor.FromLog {
			from = "log"
		}
		s.metrics.resumes.WithLabelValues(from).Inc()
	}
	return r, nil
}

// mediaStream is the media type of an event stream.
const mediaStream = "text/event-stream"

// unreadable stands for a weight that is none: what has it is acceptable, and nothing is
// preferred less.
const unreadable = 1e-9

// accepted yields the media types of an Accept header in lower case, with their weights
// (RFC 9110, 12.5.1).
func accepted(accept string) iter.Seq2[string, float64] {
	return func(yield func(string, float64) bool) {
		for item := range strings.SplitSeq(accept, ",") {
			media, params, _ := strings.Cut(item, ";")
			weight := 1.0
			if q, ok := strings.CutPrefix(strings.ReplaceAll(params, " ", ""), "q="); ok {
				var err error
				if weight, err = strconv.ParseFloat(q, 64); err != nil || weight < 0 || math.IsNaN(weight) {
					weight = unreadable
				}
			}
			if !yield(strings.ToLower(strings.TrimSpace(media)), weight) {
				return
			}
		}
	}
}

// accepts reports whether an Accept header lists a media type.
func accepts(accept, media string) bool {
	class, _, _ := strings.Cut(media, "/")
	for name, weight := range accepted(accept) {
		if weight != 0 && (name == media || name == class+"/*" || name == "*/*") {
			return true
		}
	}
	return false
}

// prefersStream reports whether an Accept header prefers an event stream to JSON: by its
// weights, and, when these are the same, by which comes first.
func prefersStream(accept string) bool {
	stream, plain, first := 0.0, 0.0, false
	for name, weight := range accepted(accept) {
		switch name {
		case mediaStream:
			stream, first = weight, plain == 0
		case fiber.MIMEApplicationJSON:
			plain = weight
		}
	}
	return stream > plain || stream == plain && stream > 0 && first
}

type responseForm uint8

const (
	formNone responseForm = iota
	formStream
	formPage
)

// form chooses between stream and page: what an Accept header names first, unless its
// weight is 0. No header, and */*, mean the stream.
func form(accept string) responseForm {
	if strings.TrimSpace(accept) == "" {
		return formStream
	}
	for name, weight := range accepted(accept) {
		if weight == 0 {
			continue
		}
		switch name {
		case mediaStream, "text/*", "*/*":
			return formStream
		case fiber.MIMEApplicationJSON, "application/*":
			return formPage
		}
	}
	return formNone
}
