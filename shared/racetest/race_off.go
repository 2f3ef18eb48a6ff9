//go:build !race

// Package racetest tells tests how much slower they are with the race detector, so that they do less.
package racetest

// Slowdown is 1 without the race detector.
const Slowdown = 1
