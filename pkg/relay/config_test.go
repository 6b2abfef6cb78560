package relay

import (
	"net/netip"
	"testing"
)

func TestValidateNamesEveryFault(t *testing.T) {
	config := Config{
		Listeners:         []Listener{{Name: "eth0"}, {Name: "a"}, {Name: "a"}, {Name: ""}},
		UpstreamInterface: "eth0", UpstreamAddress: netip.MustParseAddr("127.0.0.1"), MaxHops: 17,
		Servers: []string{"", "host:99999", "[::1]:67"}, TokenKey: []byte("short"),
		AgentOptions: []SubOption{RelayID, RemoteID, RemoteID}, TrustedListeners: []string{"b"},
	}
	err := config.Validate()
	if err == nil {
		t.Fatal("no fault")
	}
	faults, ok := err.(interface{ Unwrap() []error })
	if !ok || len(faults.Unwrap()) != 12 {
		t.Errorf("got %v", err)
	}
}
