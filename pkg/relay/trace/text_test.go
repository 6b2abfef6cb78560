package trace

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// TestText says in words what both families' packets say, and of the rest how long it is.
func TestText(t *testing.T) {
	mac := []byte{2, 0, 0, 0, 0, 0x50}
	discover, err := dhcpv4.NewDiscovery(mac, dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient")),
		dhcpv4.WithOption(dhcpv4.OptHostName("\x1b[2Ja\n00:00:09.000000 forged")))
	if err != nil {
		t.Fatal(err)
	}
	solicit, err := dhcpv6.NewSolicit(mac, dhcpv6.WithOption(dhcpv6.OptBootFileURL("\x1b[3Jb\n00:00:09.000000 forged")))
	if err != nil {
		t.Fatal(err)
	}
	ring := New(8, Protocol{
		Wall: func(at int64) time.Time { return time.Unix(0, at) }, Blank: func([]byte) {},
	})
	client4, server4 := netip.MustParseAddrPort("10.244.0.10:67"), netip.MustParseAddrPort("10.244.0.11:67")
	client6, server6 := netip.MustParseAddrPort("[2001:db8::1]:547"), netip.MustParseAddrPort("[2001:db8::2]:547")
	ring.Payload(1e9, client4, server4, discover.ToBytes())
	ring.Payload(2e9, client6, server6, solicit.ToBytes())
	ring.Payload(3e9, client4, server4, []byte("no DHCP"))
	ring.Frame(4e9, []byte("short"))
	var pcap, text bytes.Buffer
	if err := Write(&pcap, nil, 0, ring); err != nil {
		t.Fatal(err)
	}
	whole := pcap.Bytes()
	if err := Text(&text, bytes.NewReader(whole)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"00:00:01.000000 10.244.0.10:67 > 10.244.0.11:67\n", "DISCOVER", "PXEClient", "02:00:00:00:00:50",
		"00:00:02.000000 [2001:db8::1]:547 > [2001:db8::2]:547\n", "SOLICIT", "00:00:03.000000", "  7 bytes: ",
		"00:00:04.000000 a frame of 5 bytes that is no UDP\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text has no %q:\n%s", want, &text)
		}
	}
	if strings.ContainsAny(text.String(), "\x1b\r\t\x00") || strings.Contains(text.String(), "\n00:00:09") ||
		!strings.Contains(text.String(), "?[2Ja?00:00:09") || !strings.Contains(text.String(), "?[3Jb") {
		t.Errorf("a machine's text is not printable:\n%q", &text)
	}
	for _, cut := range []int{0, 10, 24 + 8, len(whole) - 1} {
		if err := Text(&text, bytes.NewReader(whole[:cut])); err == nil {
			t.Errorf("%d bytes of a file are read", cut)
		}
	}
	if err := Text(&text, strings.NewReader(strings.Repeat("x", 100))); err == nil {
		t.Error("another file is read")
	}
}
