package sessioncli

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// table aligns columns.
type table struct {
	head  []string
	right []string // those of head whose columns hold numbers
	rows  [][]string
	begun bool // the head is printed
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// flush prints what was added.
func (t *table) flush(out io.Writer) error {
	rows := t.rows
	if !t.begun {
		rows = slices.Insert(rows, 0, t.head)
	}
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if slices.Contains(t.right, t.head[i]) {
				line.WriteString(space + cell + "  ")
			} else {
				line.WriteString(cell + space + "  ")
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	t.begun, t.rows = true, nil
	_, err := io.WriteString(out, b.String())
	return err
}

// plain returns text that a terminal shows as it is: anything else is quoted.
func plain(text string) string {
	if text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}
