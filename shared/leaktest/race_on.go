//go:build race

package leaktest

// race says whether the race detector is on.
const race = true
