package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestDestinationFlags checks that the flags may be repeated or separated by commas, and reject values that are not networks.
func TestDestinationFlags(t *testing.T) {
	parse := func(args ...string) (*destinationOptions, error) {
		o := &destinationOptions{}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.addFlags(flags, "none")
		if err := flags.Parse(args); err != nil {
			return o, err
		}
		return o, o.validate()
	}
	o, err := parse("--allow-destination=127.0.0.0/8, ::1", "--allow-destination=10.0.0.5", "--deny-destination=10.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	if allow, deny := o.allow.String(), o.deny.String(); allow != "127.0.0.0/8,::1/128,10.0.0.5/32" || deny != "10.0.0.0/8" {
		t.Errorf("allowed %s, denied %s", allow, deny)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--allow-destination="}, `"" must be a CIDR such as 10.0.0.0/8 or fd00::/8, or an IP address`},
		{[]string{"--deny-destination=10.0.0.0/8,internal"}, `"--deny-destination" flag: "internal" must be a CIDR`},
		{[]string{"--deny-destination=10.0.0.0/8", "--allow-destination=10.0.0.0/8"}, "may not both contain 10.0.0.0/8"},
	} {
		if _, err := parse(tt.args...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %s", tt.args, err, tt.want)
		}
	}
}
