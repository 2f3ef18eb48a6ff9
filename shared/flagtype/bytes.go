package flagtype

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size in bytes; some flags take -1 for no limit.
type Bytes int64

// units are powers of 1000, and with an i of 1024.
var units = map[string]int64{
	"": 1, "b": 1,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}

// UnmarshalText reads a whole number with or without a unit, in which case does not count:
// "268435456", "64MB", "256KiB".
func (b *Bytes) UnmarshalText(text []byte) error {
	number := strings.TrimRight(string(text), "KMGTkmgtIiBb ")
	unit, known := units[strings.ToLower(strings.TrimSpace(string(text[len(number):])))]
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || !known || n > math.MaxInt64/unit || n < math.MinInt64/unit || n < 0 && unit > 1 {
		return fmt.Errorf("%q is not a size (examples: 268435456, 64MB, 256KiB)", text)
	}
	*b = Bytes(n * unit)
	return nil
}
