package edge

import (
	"slices"
	"testing"
)

func TestJavaScriptClient_WithoutPlayground(t *testing.T) {
	for _, playground := range []bool{false, true} {
		var paths []string
		for _, route := range (&Service{cfg: Config{Playground: playground}}).Routes() {
			paths = append(paths, route.Path)
		}
		if !slices.Contains(paths, "/rejoin.js") || slices.Contains(paths, "/") != playground {
			t.Errorf("with the playground %v, the edge serves %q", playground, paths)
		}
	}
}
