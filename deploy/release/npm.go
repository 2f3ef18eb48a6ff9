package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

const npmFolder = "services/sse-edge/rejoinjs"

var npmVersion = regexp.MustCompile(`(?m)^  "version": ".*",$`)

// npm returns the npm package of the JavaScript client, as `npm publish` takes it, with the
// release's version and the address of the repository.
func (r release) npm() ([]byte, error) {
	dir := filepath.Join(r.root, npmFolder)
	description, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		return nil, err
	}
	lines := `  "version": ` + strconv.Quote(semantic(r.version)) + ","
	if r.url != "" {
		lines += `
  "homepage": ` + strconv.Quote(r.url) + `,
  "repository": { "type": "git", "url": ` + strconv.Quote("git+"+r.url+".git") + `, "directory": "` + npmFolder + `" },`
	}
	description = npmVersion.ReplaceAll(description, []byte(lines))
	var described struct {
		Version string   `json:"version"`
		Files   []string `json:"files"`
	}
	if err := json.Unmarshal(description, &described); err != nil {
		return nil, err
	}
	if described.Version != semantic(r.version) {
		return nil, errors.New("package.json has no line with a version")
	}
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	files := []file{{"package.json", description, 0o644}, {"LICENSE", license, 0o644}}
	for _, name := range append(described.Files, "README.md") {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name, data, 0o644})
	}
	return archive("package", r.time, files)
}
