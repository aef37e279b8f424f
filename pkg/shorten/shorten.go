// Package shorten bounds texts of others in messages of the server.
package shorten

import "strings"

// Text returns a text of at most the given number of bytes, of which the last ones are "..." if it is longer. It has no incomplete or invalid characters
// then.
func Text(text string, most int) string {
	const end = "..."
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:max(most-len(end), 0)], "") + end
}
