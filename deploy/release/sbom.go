package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbom lists the modules in a program: those that the Go linker wrote down in it, so none
// that is merely in a go.mod. It has no serial number, which would differ each time.
func sbom(name, version string, at time.Time, data []byte, info *buildinfo.BuildInfo) ([]byte, error) {
	sum := sha256.Sum256(data)
	self := "pkg:generic/rejoin/" + name + "@" + url.PathEscape(version)
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	components := []cdx.Component{{
		BOMRef: "pkg:golang/std@" + goVersion, PackageURL: "pkg:golang/std@" + goVersion,
		Type: cdx.ComponentTypeLibrary, Name: "std", Version: goVersion,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "BSD-3-Clause"}}},
	}}
	needs := []string{components[0].BOMRef}
	for _, m := range others(info) {
		c := component(m)
		components, needs = append(components, c), append(needs, c.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: at.Format(time.RFC3339),
		Component: &cdx.Component{
			BOMRef: self, PackageURL: self, Type: cdx.ComponentTypeApplication,
			Group: "rejoin", Name: name, Version: version,
			Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		},
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: self, Dependencies: &needs}}
	var b bytes.Buffer
	err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return b.Bytes(), err
}

// others returns the modules of a program that are not of this repository.
func others(info *buildinfo.BuildInfo) (all []*debug.Module) {
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version != "" && m.Version != "(devel)" { // a folder of this repository has none
			all = append(all, m)
		}
	}
	return all
}

// component describes a module; its hash is that of go.sum (h1), over its source files.
func component(m *debug.Module) cdx.Component {
	purl := fmt.Sprintf("pkg:golang/%s@%s", m.Path, url.PathEscape(m.Version))
	c := cdx.Component{
		BOMRef: purl, PackageURL: purl, Type: cdx.ComponentTypeLibrary,
		Name: m.Path, Version: m.Version, Scope: cdx.ScopeRequired,
	}
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) == sha256.Size {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	return c
}
