package command

import "strings"

// nearest returns the command that begins with word, or whose name takes the fewest
// changes to be word.
func nearest(word string) (name string) {
	least := -1
	for _, c := range commands() {
		if strings.HasPrefix(c.name, word) {
			return c.name
		}
		if d := distance(word, c.name); least < 0 || d < least {
			name, least = c.name, d
		}
	}
	return name
}

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
