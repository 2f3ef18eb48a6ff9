//go:build !race

// Package racetest has the factor by which the race detector slows tests, so that they do less.
package racetest

// Slowdown is 1 without the race detector.
const Slowdown = 1
