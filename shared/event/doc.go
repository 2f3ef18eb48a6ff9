// Package event is Rejoin's vocabulary: names, messages, subjects and event IDs.
//
// It is pure: no clock, no network, no logger. Every function takes values and
// returns values and is safe for concurrent use.
package event
