//go:build race

package e2e_test

// slowdown is how much longer everything takes with the race detector.
const slowdown = 5
