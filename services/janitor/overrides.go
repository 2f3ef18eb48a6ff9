package janitor

import (
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
func (o overrides) limits(lim limits, asked session.Retention) limits {
	lim.maxEvents = session.Within(asked.MaxEvents, lim.maxEvents, o.events)
	lim.maxBytes = session.Within(asked.MaxBytes, lim.maxBytes, o.bytes)
	lim.maxStreams = o.streams.Limit(asked, lim.maxStreams)
	return lim
}
