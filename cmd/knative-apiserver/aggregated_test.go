package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// What cannot run in a cluster is refused before anything is started.
func TestAggregatedFlags(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		// want is part of the error; empty if there is none.
		want string
	}{
		"as installed":          {},
		"Eventing":              {args: []string{"--components=apiserver,controllers,broker"}},
		"Serving":               {[]string{"--components=apiserver,controllers,gateway"}, "--components may not contain gateway in a cluster"},
		"broker alone":          {[]string{"--components=apiserver,broker"}, "--components must contain controllers with gateway or broker"},
		"controllers alone":     {[]string{"--components=apiserver,controllers"}, "--components must contain controllers with gateway or broker"},
		"no API":                {[]string{"--components=controllers,broker"}, "--components must contain apiserver"},
		"unknown component":     {[]string{"--components=apiserver,scheduler"}, `--components "scheduler" must be among`},
		"a port of its own":     {[]string{"--broker-port=70000"}, "--broker-port 70000 must be from 0 to 65535"},
		"no namespace":          {[]string{"--system-namespace=Not_One"}, `--system-namespace "Not_One"`},
		"nowhere to put events": {[]string{"--components=apiserver,controllers,broker", "--etcd-servers=http://127.0.0.1:2379", "--data-dir="}, "one of --nats-url and --data-dir must be given"},
		"events in NATS":        {args: []string{"--components=apiserver,controllers,broker", "--etcd-servers=http://127.0.0.1:2379", "--data-dir=", "--nats-url=nats://127.0.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			options := newAggregatedOptions()
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			options.addFlags(flags)
			if err := flags.Parse(test.args); err != nil {
				t.Fatal(err)
			}
			err := options.validate()
			if test.want == "" && err != nil {
				t.Errorf("validate returns %v", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("validate returns %v, want %q", err, test.want)
			}
		})
	}
}
