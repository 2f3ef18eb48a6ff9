package main

// stored is a log on disk.
type stored struct{}
