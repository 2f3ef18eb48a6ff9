package system

import "context"

// Contender is a server that is measured; prefix stands before its figures.
type Contender struct {
	Prefix string
	Start  func(ctx context.Context, p *Programs) (Server, error)
}

// The prefixes of the contenders. Rejoin's figures have none.
const (
	OfRejoin   = ""
	OfRaw      = "raw_"
	OfRawBatch = "rawbatch_"
	OfNchan    = "nchan_"
)

// Contenders returns those with the prefixes, except Nchan when it is not installed.
func (p *Programs) Contenders(prefixes ...string) []Contender {
	var all []Contender
	for _, prefix := range prefixes {
		c := Contender{Prefix: prefix}
		switch prefix {
		case OfRejoin:
			c.Start = func(ctx context.Context, p *Programs) (Server, error) { return StartRejoin(ctx, p, "") }
		case OfRaw:
			c.Start = func(ctx context.Context, _ *Programs) (Server, error) { return StartRaw(ctx, RawEach) }
		case OfRawBatch:
			c.Start = func(ctx context.Context, _ *Programs) (Server, error) { return StartRaw(ctx, rawBatch) }
		case OfNchan:
			if p.nginx == "" {
				continue
			}
			c.Start = func(ctx context.Context, p *Programs) (Server, error) { return StartNchan(ctx, p) }
		}
		all = append(all, c)
	}
	return all
}
