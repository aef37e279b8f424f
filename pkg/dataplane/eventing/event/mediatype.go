package event

import (
	"mime"
	"slices"
	"strings"
)

// isJSON reports whether data of a media type is JSON: its subtype is json or ends with +json (CloudEvents JSON Event
// Format 1.0.2, 3.1).
func isJSON(mediaType string) bool {
	mediaType, _, _ = strings.Cut(mediaType, ";")
	mediaType = strings.TrimSpace(mediaType)
	return hasSuffixFold(mediaType, "/json") || hasSuffixFold(mediaType, "+json")
}

func hasSuffixFold(s, suffix string) bool {
	return len(s) >= len(suffix) && strings.EqualFold(s[len(s)-len(suffix):], suffix)
}

// textTypes are media types of text besides text/*, +xml and +yaml.
var textTypes = []string{
	"application/ecmascript", "application/graphql", "application/javascript", "application/sql", "application/toml",
	"application/x-ndjson", "application/x-www-form-urlencoded", "application/x-yaml", "application/xml", "application/yaml",
}

// isText reports whether data of a media type is text in UTF-8, as far as the type says.
func isText(mediaType string) bool {
	kind, parameters, err := mime.ParseMediaType(mediaType)
	if err != nil {
		return false
	}
	if charset, found := parameters["charset"]; found && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
		return false
	}
	return strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "+xml") || strings.HasSuffix(kind, "+yaml") ||
		slices.Contains(textTypes, kind)
}
