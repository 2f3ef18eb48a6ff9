package edge

import (
	"context"
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
	// Last-Event-ID wins over after: a browser that reconnects sends the newer place
	// in the header, with the URL that it was opened with.
	if req.start.After, _, err = web.Query(c, "after"); err != nil {
		return request{}, err
	}
	if id := c.Get("Last-Event-ID"); id != "" {
		req.start.After = strings.Clone(id)
	}
	if req.start.Now, err = web.Choice(c, "from", "now", "start", false); err != nil {
		return request{}, err
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
	r, err := s.parts.Of(req.at.Session).Open(ctx, req.at, req.start, limit)
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
