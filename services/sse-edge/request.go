package edge

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/event"
	"rejoin/shared/flagtype"
	"rejoin/shared/web"
)

const (
	// maxMethods bounds the methods that every event is compared with.
	maxMethods = 32
	// maxMethodLen is in bytes.
	maxMethodLen = 256
	// maxWait is the longest wait of a poll.
	maxWait = 60 * time.Second
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
	copy(f.Methods, strings.Split(f.Text, ",")) // a connection thus keeps the names, up to 8 KiB, once
	return f, nil
}

func validMethod(m string) bool {
	star := strings.IndexByte(m, '*')
	return m != "" && len(m) <= maxMethodLen && utf8.ValidString(m) && (star < 0 || star == len(m)-1)
}

func parse(c *fiber.Ctx) (subscriber.Request, error) {
	req := subscriber.Request{Limit: subscriber.DefaultLimit}
	var err error
	if req.At.Session, err = name(c, "session", event.CheckSession); err != nil {
		return subscriber.Request{}, err
	}
	if c.Params("stream") != "" {
		if req.At.Stream, err = name(c, "stream", event.CheckStream); err != nil {
			return subscriber.Request{}, err
		}
	}
	if req.Start, err = parseStart(c); err != nil {
		return subscriber.Request{}, err
	}
	if req.Start.Last, err = web.Number(c, "last", 0, 1, subscriber.MaxLimit); err != nil {
		return subscriber.Request{}, err
	}
	if _, given, _ := web.Query(c, "from"); given && req.Start.Last > 0 {
		return subscriber.Request{}, web.New(web.CodeInvalidParameter, `The parameters "from" and "last" are two places to begin at.`)
	}
	if req.OnGapError, err = web.Choice(c, "on_gap", "error", "event", false); err != nil {
		return subscriber.Request{}, err
	}
	if req.Envelope, err = web.Choice(c, "envelope", "true", "false", req.At.Stream == ""); err != nil {
		return subscriber.Request{}, err
	}
	if req.Filter, err = parseFilter(c); err != nil {
		return subscriber.Request{}, err
	}
	if req.Limit, err = web.Number(c, "limit", subscriber.DefaultLimit, 1, subscriber.MaxLimit); err != nil {
		return subscriber.Request{}, err
	}
	seconds, err := web.Number(c, "wait", 0, 0, int(maxWait/time.Second))
	req.Wait = time.Duration(seconds) * time.Second
	return req, err
}

// parseStart reads the start of a subscriber. Last-Event-ID wins over after: a reconnecting
// browser sends the newer cursor in the header, with the URL of its first request.
func parseStart(c *fiber.Ctx) (start cursor.Start, err error) {
	if start.After, _, err = web.Query(c, "after"); err != nil {
		return cursor.Start{}, err
	}
	if id := c.Get("Last-Event-ID"); id != "" {
		start.After = strings.Clone(id)
	}
	from, given, err := web.Query(c, "from")
	if err != nil || !given {
		return start, err
	}
	switch from {
	case "start", "earliest":
	case "now":
		start.Now = true
	default:
		if start.Since, err = time.Parse(time.RFC3339, from); err == nil {
			break
		}
		ago, err := flagtype.ParseDuration(strings.TrimPrefix(from, "-"))
		if err != nil || ago < 0 || !strings.HasPrefix(from, "-") {
			return cursor.Start{}, web.New(web.CodeInvalidParameter, `The parameter "from" is "start", "now", a time such as 2026-01-31T12:00:00Z, or how long ago, such as -5m.`)
		}
		start.Since = time.Now().Add(-ago)
	}
	return start, nil
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
