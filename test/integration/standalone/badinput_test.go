package standalone

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// badInput is a body that must be rejected. It is built when it is sent, because some are large.
type badInput struct {
	name      string
	kind      string
	mediaType string
	body      func() string
	// codes are the expected status codes; none means any 4xx.
	codes []int
}

// wrap returns a manifest of a kind with a spec.
func wrap(kind, spec string) string {
	k := harness.KindOf(kind)
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"a"},"spec":%s}`, k.GroupVersion(), kind, spec)
}

// withMetadata returns a Broker with metadata.
func withMetadata(metadata string) string {
	return fmt.Sprintf(`{"apiVersion":"eventing.knative.dev/v1","kind":"Broker","metadata":%s,"spec":{}}`, metadata)
}

func nested(open, middle, end string, depth int) string {
	return strings.Repeat(open, depth) + middle + strings.Repeat(end, depth)
}

func withImage(fields string) string {
	return wrap("Service", `{"template":{"spec":{"containers":[{"image":"registry.example.com/hello"`+fields+`}]}}}`)
}

const deep = 10_000

func badInputs() []badInput {
	text := func(s string) func() string { return func() string { return s } }
	return []badInput{
		{"nothing", "Service", "", text(" "), []int{400}},
		{"broken JSON", "Service", "", text(`{"apiVersion":`), []int{400}},
		{"JSON with trailing text", "Broker", "", text(wrap("Broker", `{}`) + "}"), []int{400}},
		{"broken YAML", "Service", "application/yaml", text("a: b: c\n\t- d"), []int{400}},
		{"YAML with an alias bomb", "Broker", "application/yaml", func() string {
			s := "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
			for i := 1; i < 10; i++ {
				s += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
			}
			return s
		}, []int{400}},
		{"a number", "Service", "", text("1"), []int{400}},
		{"a list", "Service", "", text("[]"), []int{400}},
		{"no kind", "Service", "", text(`{"metadata":{"name":"a"}}`), nil},
		{"another kind", "Service", "", text(wrap("Route", `{}`)), []int{400}},
		{"another group", "Service", "", text(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}}`), []int{400}},
		{"another version", "Service", "", text(`{"apiVersion":"serving.knative.dev/v2","kind":"Service","metadata":{"name":"a"}}`), []int{400}},
		{"bad version", "Service", "", text(`{"apiVersion":"a/b/c","kind":"Service","metadata":{"name":"a"}}`), []int{400}},
		{"text for a spec", "Service", "", text(wrap("Service", `"text"`)), []int{400}},
		{"text for a number", "Service", "", text(wrap("Service", `{"template":{"spec":{"timeoutSeconds":"300"}}}`)), []int{400}},
		{"a fraction", "Broker", "", text(wrap("Broker", `{"delivery":{"retry":1.5}}`)), []int{400}},
		{"a number beyond int32", "Broker", "", text(wrap("Broker", `{"delivery":{"retry":2147483648}}`)), []int{400}},
		{"a number beyond int64", "Service", "", text(wrap("Service", `{"template":{"spec":{"timeoutSeconds":9223372036854775808}}}`)), []int{400}},
		{"a number beyond all types", "Service", "", text(wrap("Service", `{"template":{"spec":{"timeoutSeconds":1e999}}}`)), []int{400}},
		{"a negative number", "Broker", "", text(wrap("Broker", `{"delivery":{"retry":-2147483648}}`)), []int{422}},
		{"a bad quantity", "Service", "", text(withImage(`,"resources":{"limits":{"cpu":"much"}}`)), []int{400, 422}},
		{"a negative quantity", "Service", "", text(withImage(`,"resources":{"limits":{"cpu":"-1"}}`)), []int{422}},
		{"a negative port", "Service", "", text(withImage(`,"ports":[{"containerPort":-1}]`)), []int{422}},
		{"a map for a list", "Service", "", text(wrap("Service", `{"traffic":{}}`)), []int{400}},
		{"an object for a name", "Broker", "", text(withMetadata(`{"name":{}}`)), []int{400}},
		{"a bad time", "Broker", "", text(withMetadata(`{"name":"a","creationTimestamp":"yesterday"}`)), []int{400}},
		{"a name with slashes", "Broker", "", text(withMetadata(`{"name":"a/../../b"}`)), []int{422}},
		{"a name of dots", "Broker", "", text(withMetadata(`{"name":".."}`)), []int{422}},
		{"a long name", "Broker", "", text(withMetadata(`{"name":"` + strings.Repeat("a", 10_000) + `"}`)), []int{422}},
		{"a name with a NUL", "Broker", "", text(withMetadata(`{"name":"a\u0000b"}`)), []int{422}},
		{"invalid UTF-8 in a name", "Broker", "", text(withMetadata("{\"name\":\"a\xff\"}")), []int{400, 422}},
		{"invalid UTF-8 in a value", "Service", "", text(withImage(",\"args\":[\"\xff\xfe\"]")), []int{400, 422}},
		{"invalid UTF-8 in YAML", "Broker", "application/yaml", text("kind: Broker\nname: \"\xff\xfe\""), []int{400}},
		{"invalid UTF-8 in an annotation", "Broker", "", text(withMetadata("{\"name\":\"a\",\"annotations\":{\"a\":\"\xff\"}}")), []int{400, 422}},
		{"50,000 labels", "Broker", "", func() string { return withMetadata(`{"name":"a","labels":` + many(50_000) + `}`) }, []int{413, 422}},
		{"annotations of 1 MiB", "Broker", "", func() string {
			return withMetadata(`{"name":"a","annotations":{"a":"` + strings.Repeat("x", 1<<20) + `"}}`)
		}, []int{422}},
		{"2 MiB", "Service", "", func() string { return withImage(`,"args":["` + strings.Repeat("x", 2<<20) + `"]`) }, []int{413}},
		{"more than 3 MiB", "Service", "", func() string { return withImage(`,"args":["` + strings.Repeat("x", 3<<20) + `"]`) }, []int{413}},
		{"10 MiB", "Service", "", func() string { return strings.Repeat(" ", 10<<20) }, []int{413}},
		{"deep lists", "Service", "", func() string { return wrap("Service", nested("[", "", "]", deep)) }, []int{400}},
		{"deep objects", "Service", "", func() string { return wrap("Service", nested(`{"a":`, "1", "}", deep)) }, []int{400, 413, 422}},
		{"deep unclosed lists", "Service", "", func() string { return strings.Repeat("[", 1<<20) }, []int{400}},
		{"deep YAML", "Service", "application/yaml", func() string { return nested("[", "", "]", deep) }, []int{400}},
		{"deep labels", "Broker", "", func() string { return withMetadata(`{"name":"a","labels":` + nested(`{"a":`, `"b"`, "}", deep) + "}") }, []int{400}},
		{"deep template parameters", "Channel", "", func() string {
			return wrap("Channel", `{"channelTemplate":{"apiVersion":"messaging.knative.dev/v1","kind":"JetStreamChannel","spec":`+nested(`{"a":`, "1", "}", deep)+`}}`)
		}, []int{400, 422}},
		{"deep filters", "Trigger", "", func() string {
			return wrap("Trigger", `{"broker":"a","subscriber":{"uri":"http://a"},"filters":[`+nested(`{"not":`, `{"exact":{"type":"a"}}`, "}", deep)+`]}`)
		}, []int{400, 422}},
		{"deep lists of filters", "Trigger", "", func() string {
			return wrap("Trigger", `{"broker":"a","subscriber":{"uri":"http://a"},"filters":[`+nested(`{"all":[`, `{"exact":{"type":"a"}}`, "]}", deep/2)+`]}`)
		}, []int{400, 422}},
		{"deep CESQL", "Trigger", "", func() string {
			return wrap("Trigger", `{"broker":"a","subscriber":{"uri":"http://a"},"filters":[{"cesql":"`+nested("(", "TRUE", ")", deep)+`"}]}`)
		}, []int{422}},
	}
}

// many returns a map of n labels.
func many(n int) string {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `,"l%d":"v"`, i)
	}
	return "{" + strings.TrimPrefix(b.String(), ",") + "}"
}

// wantMemory allows for garbage that is not collected yet.
func wantMemory(now, before int) error {
	const slack = 64 << 20
	if now > before*3/2+slack {
		return fmt.Errorf("the server holds %d MiB, before it was %d MiB", now>>20, before>>20)
	}
	return nil
}
