package janitor

import (
	"rejoin/services/janitor/ledger"

	"rejoin/shared/session"
)

// overrides are how far the metadata of a session may raise its limits.
type overrides struct {
	events, bytes int64
	streams       session.StreamsOverride
}

func (c Config) overrides() overrides {
	return overrides{c.MaxEventsOverride, c.MaxBytesOverride, c.Streams}
}

// limits returns the limits of a session, where all sessions have lim.
func (o overrides) limits(lim ledger.Limits, asked session.Retention) ledger.Limits {
	lim.MaxEvents = session.Within(asked.MaxEvents, lim.MaxEvents, o.events)
	lim.MaxBytes = session.Within(asked.MaxBytes, lim.MaxBytes, o.bytes)
	lim.MaxStreams = o.streams.Limit(asked, lim.MaxStreams)
	return lim
}
