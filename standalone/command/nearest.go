package command

import (
	"strings"

	"rejoin/shared/daemon"
)

// nearest returns the first command that begins as word does, or of which word is a typo; empty for
// a word that is like none.
func nearest(word string) string {
	for _, c := range commands() {
		if strings.HasPrefix(c.name, word[:min(len(word), sameBytes)]) || daemon.IsTypo(word, c.name) {
			return c.name
		}
	}
	return ""
}

// sameBytes is how much of a name tells what was meant.
const sameBytes = 4
