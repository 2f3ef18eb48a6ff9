//go:build race

// Package racetest has the factor by which the race detector slows tests, so that they do less.
package racetest

// Slowdown is how much longer everything takes with the race detector.
const Slowdown = 5
