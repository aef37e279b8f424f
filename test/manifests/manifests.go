// Package manifests tests artifacts/install. kubectl builds each of its variants.
package manifests
