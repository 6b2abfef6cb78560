package main

import "testing"

func TestProcessors(t *testing.T) {
	two := []listener{{Name: "lan0"}, {Name: "lan1"}}
	for name, test := range map[string]struct {
		settings settings
		want     int
	}{
		"unicasts only":       {settings: settings{Servers: []string{"smee"}, Listeners: []listener{{Name: "none"}}}, want: 2},
		"DHCPv4":              {settings: settings{Servers: []string{"smee"}, Listeners: two[:1]}, want: 3},
		"DHCPv6":              {settings: settings{Dhcpv6Enabled: true, Listeners: two}, want: 4},
		"both":                {settings: settings{Servers: []string{"smee"}, Dhcpv6Enabled: true, Listeners: two}, want: 7},
		"more than the bound": {settings: settings{Servers: []string{"smee"}, Listeners: make([]listener, 20)}, want: 8},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.settings.processors(); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}
