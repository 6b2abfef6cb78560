package main

import (
	"strings"
	"testing"

	"github.com/tinkerbell/stack/pkg/daemon"
)

func TestMachinesAreNoTrustedProxies(t *testing.T) {
	t.Setenv("STACK_PROXY_PUBLIC_ADDRESSES", "192.0.2.10,2001:db8::10")
	for proxies, good := range map[string]bool{
		"": true, "198.51.100.7/32,2001:db8:ffff::/64": true,
		"0.0.0.0/0": false, "::/0": false, "192.0.2.0/24": false, "198.51.100.7/32,2001:db8::/32": false,
	} {
		t.Setenv("STACK_PROXY_TRUSTED_PROXIES", proxies)
		err := daemon.ParseEnv(prefix, &config{})
		if (err == nil) != good || !good && !strings.Contains(err.Error(), "machines are in it") {
			t.Errorf("%q: %v", proxies, err)
		}
	}
}
