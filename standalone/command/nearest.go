package command

import "strings"

// nearest returns the command that begins as word does, or whose name is word after a change or
// two; empty for a word that is like none.
func nearest(word string) (name string) {
	least := 3
	for _, c := range commands() {
		if strings.HasPrefix(c.name, word[:min(len(word), sameBytes)]) {
			return c.name
		}
		if d := distance(word, c.name); d < least {
			name, least = c.name, d
		}
	}
	return name
}

// sameBytes is how much of a name tells what was meant.
const sameBytes = 4

// distance is the Levenshtein distance of two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
