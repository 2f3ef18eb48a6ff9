//go:build !race

package e2e

// buildFlags build the programs under test as the tests are built.
var buildFlags []string

// memoryFactor is how much more memory a program takes that is built so.
const memoryFactor = 1
