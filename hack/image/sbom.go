package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// document is a bill of materials, with the used subset of SPDX 2.3.
type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creationInfo   `json:"creationInfo"`
	Packages          []component    `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creationInfo struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type component struct {
	SPDXID           string        `json:"SPDXID"`
	Name             string        `json:"name"`
	VersionInfo      string        `json:"versionInfo,omitempty"`
	DownloadLocation string        `json:"downloadLocation"`
	FilesAnalyzed    bool          `json:"filesAnalyzed"`
	SourceInfo       string        `json:"sourceInfo,omitempty"`
	LicenseConcluded string        `json:"licenseConcluded"`
	LicenseDeclared  string        `json:"licenseDeclared"`
	CopyrightText    string        `json:"copyrightText"`
	ExternalRefs     []externalRef `json:"externalRefs,omitempty"`
}

type externalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const (
	documentID   = "SPDXRef-DOCUMENT"
	noAssertion  = "NOASSERTION"
	mainID       = "SPDXRef-Package-main"
	goStandardID = "SPDXRef-Package-stdlib"
)

// describe lists the modules in the build information of a program, and Go's standard library.
func describe(o options, info *debug.BuildInfo) ([]byte, error) {
	version := o.version
	if version == "" {
		version = info.Main.Version
	}
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: documentID, Name: o.title,
		CreationInfo: creationInfo{
			Created:  o.created.UTC().Format(time.RFC3339),
			Creators: []string{"Tool: knative-apiserver-hack-image"},
		},
		Packages: []component{
			newComponent(mainID, info.Main.Path, version, ""),
			newComponent(goStandardID, "stdlib", strings.TrimPrefix(info.GoVersion, "go"), ""),
		},
		Relationships: []relationship{
			{documentID, "DESCRIBES", mainID},
			{mainID, "DEPENDS_ON", goStandardID},
		},
	}
	for i, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		id := fmt.Sprintf("SPDXRef-Package-%d", i+1)
		d.Packages = append(d.Packages, newComponent(id, module.Path, module.Version, module.Sum))
		d.Relationships = append(d.Relationships, relationship{mainID, "DEPENDS_ON", id})
	}
	// The namespace of a document derives from its content, so that the same program has the same one.
	content, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	d.DocumentNamespace = fmt.Sprintf("https://%s/spdx/%s-%x", info.Main.Path, o.title, sha256.Sum256(content))
	content, err = json.MarshalIndent(d, "", "  ")
	return append(content, '\n'), err
}

// newComponent describes a module. Sum is its checksum in go.sum.
func newComponent(id, module, version, sum string) component {
	c := component{
		SPDXID: id, Name: module, VersionInfo: version,
		DownloadLocation: noAssertion, LicenseConcluded: noAssertion, LicenseDeclared: noAssertion, CopyrightText: noAssertion,
		ExternalRefs: []externalRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + module + "@" + version}},
	}
	if version == "" {
		c.ExternalRefs[0].Locator = "pkg:golang/" + module
	}
	if sum != "" {
		c.SourceInfo = "go.sum " + sum
	}
	return c
}
