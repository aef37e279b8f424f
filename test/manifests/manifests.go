// Package manifests holds the tests of artifacts/install, each variant of which kubectl builds.
package manifests
