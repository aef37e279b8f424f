package filter

import "strings"

// pattern is the pattern of LIKE: segments of fixed length with any text between them.
type pattern []segment

// segment is a part of a pattern without %. wild marks the bytes that _ stands for; nil means none.
type segment struct {
	text string
	wild []bool
}

// parsePattern returns a pattern (CESQL 3.4.4). A backslash escapes % and _, and stands for itself before any other byte.
func parsePattern(source string) pattern {
	var (
		parsed pattern
		text   []byte
		wild   []bool
		found  bool
	)
	end := func() {
		s := segment{text: string(text)}
		if found {
			s.wild = wild
		}
		parsed = append(parsed, s)
		text, wild, found = nil, nil, false
	}
	for i := 0; i < len(source); i++ {
		c := source[i]
		escapes := c == '\\' && i+1 < len(source) && (source[i+1] == '%' || source[i+1] == '_')
		switch {
		case escapes:
			i++
			c = source[i]
		case c == '%':
			end()
			continue
		}
		text, wild = append(text, c), append(wild, c == '_' && !escapes)
		found = found || wild[len(wild)-1]
	}
	end()
	return parsed
}

// matches reports whether the pattern stands for text. It takes the steps of one search through text, unless
// the pattern has _ between two %: then up to the product of both lengths, counted one by one.
func (p pattern) matches(text string, b *Budget) bool {
	first, rest := p[0], p[1:]
	if len(text) < len(first.text) || !first.at(text, b) {
		return false
	}
	text = text[len(first.text):]
	if len(rest) == 0 {
		return text == ""
	}
	last := rest[len(rest)-1]
	for _, s := range rest[:len(rest)-1] {
		i := s.index(text, b)
		if i < 0 {
			return false
		}
		text = text[i+len(s.text):]
	}
	return len(text) >= len(last.text) && last.at(text[len(text)-len(last.text):], b)
}

// at reports whether text, which is long enough, starts with the segment.
func (s *segment) at(text string, b *Budget) bool {
	if s.wild == nil {
		return b.spend(len(s.text)) && strings.HasPrefix(text, s.text)
	}
	n := 0
	for n < len(s.text) && (s.wild[n] || s.text[n] == text[n]) {
		n++
	}
	return b.spend(n+1) && n == len(s.text)
}

// index returns where the segment first occurs in text, or -1.
func (s *segment) index(text string, b *Budget) int {
	if s.wild == nil {
		i := strings.Index(text, s.text)
		searched := len(text)
		if i >= 0 {
			searched = i + len(s.text)
		}
		if !b.spend(searched) {
			return -1
		}
		return i
	}
	for i := 0; i+len(s.text) <= len(text) && !b.exceeded; i++ {
		if s.at(text[i:], b) {
			return i
		}
	}
	return -1
}
