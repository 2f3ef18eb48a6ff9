// Package rejoinjs holds the JavaScript client, which an edge serves at
// /rejoin.js. The folder is an npm package as well; both have the same file.
package rejoinjs

import _ "embed"

// Source is the client, an ES module without imports.
//
//go:embed rejoin.js
var Source []byte
