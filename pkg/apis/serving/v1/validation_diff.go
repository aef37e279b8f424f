package v1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	maxDiffLines      = 40
	maxDiffValueRunes = 200
)

// describeChange lists the fields in which two values of one type differ, as they appear in a manifest: a line with - for the old
// value and one with + for the new one, in the order of the field paths. Long lists and values are truncated, because they appear
// in the status of an API response.
func describeChange(before, after any) string {
	was, is := flatten(before), flatten(after)
	paths := slices.Sorted(maps.Keys(was))
	for path := range is {
		if _, ok := was[path]; !ok {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)

	var lines []string
	for _, path := range paths {
		oldValue, inOld := was[path]
		newValue, inNew := is[path]
		if inOld && inNew && oldValue == newValue {
			continue
		}
		if inOld {
			lines = append(lines, fmt.Sprintf("-%s: %s", path, shorten(oldValue)))
		}
		if inNew {
			lines = append(lines, fmt.Sprintf("+%s: %s", path, shorten(newValue)))
		}
	}
	if len(lines) > maxDiffLines {
		more := len(lines) - maxDiffLines
		lines = append(lines[:maxDiffLines], fmt.Sprintf("... and %d lines more", more))
	}
	return strings.Join(lines, "\n")
}

// flatten returns the values of v's JSON form by path.
func flatten(v any) map[string]string {
	values := map[string]string{}
	data, err := json.Marshal(v)
	if err != nil {
		values[""] = err.Error()
		return values
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	// float64 would truncate large integers.
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		values[""] = err.Error()
		return values
	}
	addValues(values, "", tree)
	return values
}

func addValues(values map[string]string, path string, node any) {
	switch node := node.(type) {
	case map[string]any:
		for key, child := range node {
			addValues(values, childPath(path, key), child)
		}
	case []any:
		for i, child := range node {
			addValues(values, fmt.Sprintf("%s[%d]", path, i), child)
		}
	case nil:
	default:
		leaf, err := json.Marshal(node)
		if err != nil {
			leaf = []byte(err.Error())
		}
		values[path] = string(leaf)
	}
}

func childPath(path, key string) string {
	switch {
	case strings.ContainsAny(key, "./[]"):
		return fmt.Sprintf("%s[%s]", path, key)
	case path == "":
		return key
	default:
		return path + "." + key
	}
}

func shorten(value string) string {
	if runes := []rune(value); len(runes) > maxDiffValueRunes {
		return string(runes[:maxDiffValueRunes]) + "..."
	}
	return value
}
