package edge

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gofiber/fiber/v2"

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
func parseFilter(c *fiber.Ctx) (*filter, error) {
	f := &filter{}
	for _, value := range web.Queries(c, "method") {
		for method := range strings.SplitSeq(value, ",") {
			if !validMethod(method) {
				return nil, web.New(web.CodeInvalidParameter, `The parameter "method" names methods of up to `+strconv.Itoa(maxMethodLen)+
					` bytes, with commas between them; an asterisk stands for any end of a name.`)
			}
			f.methods = append(f.methods, method)
		}
	}
	slices.Sort(f.methods)
	if f.methods = slices.Compact(f.methods); len(f.methods) > maxMethods {
		return nil, web.New(web.CodeInvalidParameter, `The parameter "method" names more than `+strconv.Itoa(maxMethods)+" methods.")
	}
	level, given, err := web.Query(c, "level")
	if err != nil {
		return nil, err
	}
	if given {
		if f.level = slices.Index(event.Levels, level); f.level < 0 {
			return nil, web.New(web.CodeInvalidParameter, `The parameter "level" is one of `+strings.Join(event.Levels, ", ")+".")
		}
	}
	if len(f.methods) == 0 && f.level == 0 {
		return nil, nil
	}
	f.text = strings.Join(append(f.methods, event.Levels[f.level]), ",")
	return f, nil
}

func validMethod(m string) bool {
	star := strings.IndexByte(m, '*')
	return m != "" && len(m) <= maxMethodLen && utf8.ValidString(m) && (star < 0 || star == len(m)-1)
}
