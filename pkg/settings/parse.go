package settings

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
)

// exampleKey is the key of the documentation in the ConfigMaps that Knative ships. It has no effect.
const exampleKey = "_example"

// parser reads the data of one ConfigMap and collects its errors.
type parser struct {
	configMap string
	data      map[string]string
	// known are the names of the keys that are read, including former names; present are the current names.
	known   sets.Set[string]
	present []string
	errs    []error
}

func newParser(configMap string, data map[string]string) *parser {
	return &parser{configMap: configMap, data: data, known: sets.New(exampleKey)}
}

// lookup returns the value of the first key that exists: the current name first, then former names.
func (p *parser) lookup(keys ...string) (key, value string, ok bool) {
	p.known.Insert(keys...)
	p.present = append(p.present, keys[0])
	for _, key = range keys {
		if value, ok = p.data[key]; ok {
			return key, strings.TrimSpace(value), true
		}
	}
	return "", "", false
}

// read sets into to the value of the first key that exists. If parse rejects the value, the error states that it must be
// allowed.
func read[T any](p *parser, into *T, parse func(string) (T, bool), allowed string, keys ...string) {
	key, value, ok := p.lookup(keys...)
	if !ok {
		return
	}
	parsed, ok := parse(value)
	if !ok {
		p.errs = append(p.errs, fmt.Errorf("key '%s' of %s must be %s, not %q", key, p.configMap, allowed, value))
		return
	}
	*into = parsed
}

// check records an error unless ok, for combinations of keys. must is the predicate of "must ...".
func (p *parser) check(ok bool, key, must string, args ...any) {
	if !ok {
		p.errs = append(p.errs, fmt.Errorf("key '%s' of %s must %s", key, p.configMap, fmt.Sprintf(must, args...)))
	}
}

// done returns all errors. Keys without effect are not errors.
func (p *parser) done() error { return errors.Join(p.errs...) }

func boolean(value string) (bool, bool) {
	b, err := strconv.ParseBool(strings.ToLower(value))
	return b, err == nil
}

// number returns a parser of finite numbers that ok accepts.
func number(ok func(float64) bool) func(string) (float64, bool) {
	return func(value string) (float64, bool) {
		n, err := strconv.ParseFloat(value, 64)
		return n, err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) && ok(n)
	}
}

// whole returns a parser of integers of at least lower that fit T.
func whole[T int | int32 | int64](lower T) func(string) (T, bool) {
	return func(value string) (T, bool) {
		n, err := strconv.ParseInt(value, 10, 64)
		return T(n), err == nil && int64(T(n)) == n && T(n) >= lower
	}
}

// period returns a parser of durations that ok accepts.
func period(ok func(time.Duration) bool) func(string) (time.Duration, bool) {
	return func(value string) (time.Duration, bool) {
		d, err := time.ParseDuration(value)
		return d, err == nil && ok(d)
	}
}

func wholeSeconds(d time.Duration) bool { return d%time.Second == 0 }
