package listener

import (
	"testing"

	"github.com/tinkerbell/stack/internal/nstest"
)

// TestMissingListenerSaysWhatToListenOn: on a host without Kubernetes nobody makes macvlan0.
func TestMissingListenerSaysWhatToListenOn(t *testing.T) {
	host, pod := nstest.New(t), nstest.New(t)
	for _, test := range []struct {
		in   *nstest.NS
		want string
	}{
		{pod, "no interface macvlan0 here: broadcast-init makes it, or the listener is misnamed"},
		{host, "no interface macvlan0 here: in a pod broadcast-init makes it, or the listener is misnamed; on a host listen on its own: " +
			"DHCP_RELAY_LISTENERS=eth0 (here are: eth0)"},
	} {
		if test.in == host {
			nstest.Veth(t, host, "eth0", pod, "veth0")
		}
		test.in.Do(t, func() error {
			if _, err := (&Listener[struct{}]{config: Config[struct{}]{Name: "macvlan0"}}).look(); err == nil || err.Error() != test.want {
				t.Errorf("got %v\nwant %s", err, test.want)
			}
			return nil
		})
	}
}
