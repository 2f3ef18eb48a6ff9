package eventlog

import (
	"context"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// SetChecked notes that all of a partition was read in a generation, and up to which
// sequence entries are missing that nothing explains; 0 for none. A file that was damaged
// is found when its server starts, so what a generation was found to be it stays. Only the
// acting janitor may call it. Errors are those of [Log.BeginGeneration].
func (l *Log) SetChecked(ctx context.Context, p int, generation string, damaged uint64) error {
	_, err := l.changeServers(ctx, p, func(_ *jetstream.StreamInfo, meta map[string]string) (bool, error) {
		gens, err := parseGenerations(meta[metaGenerations])
		if err == nil && gens[len(gens)-1].ID == generation {
			meta[metaChecked] = formatChecked(generation, damaged)
		}
		return false, err
	})
	return err
}

func formatChecked(generation string, damaged uint64) string {
	return generation + ":" + strconv.FormatUint(damaged, 10)
}

// parseChecked reads what formatChecked wrote; what cannot be read says nothing.
func parseChecked(s string) (generation string, damaged uint64) {
	generation, number, _ := strings.Cut(s, ":")
	damaged, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return "", 0
	}
	return generation, damaged
}
