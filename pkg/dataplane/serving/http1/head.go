package http1

// Head is the head of a request. Its slices belong to the connection.
type Head struct {
	// Method, Target and Host as sent; Target is in origin form, such as /path?query, or *.
	Method, Target, Host []byte
	// Fields are all header fields in order, including hop-by-hop fields.
	Fields []Field
}

// Field is one header field. Name is in lower case, Value without surrounding white space.
type Field struct {
	Name, Value []byte
}

// Get returns the value of the first field of a name, which is given in lower case, or nil.
func (h *Head) Get(name string) []byte {
	for i := range h.Fields {
		if string(h.Fields[i].Name) == name {
			return h.Fields[i].Value
		}
	}
	return nil
}
