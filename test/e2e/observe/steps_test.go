package observe

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestSteps(t *testing.T) {
	start := time.Unix(1e9, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	took := func(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
	var b Boot
	for _, e := range []Event{
		{At: at(0), Kind: DHCP, Name: "DISCOVER", VendorClass: "PXEClient:Arch:00000", UserClass: "iPXE"},
		{At: at(1), Kind: DHCP, Name: "OFFER"},
		{At: at(1), Kind: DHCP, Name: "REQUEST", VendorClass: "PXEClient:Arch:00000", UserClass: "iPXE"},
		{At: at(2), Kind: DHCP, Name: "ACK"},
		{At: at(3), Took: took(0.5), Kind: Trouble, Name: "undionly.kpxe"},
		{At: at(5), Took: took(1.5), Kind: TFTP, Name: "undionly.kpxe"},
		{At: at(6), Kind: DHCP, Name: "DISCOVER", VendorClass: "PXEClient:Arch:00000", UserClass: "iPXE"},
		{At: at(7), Kind: DHCP, Name: "ACK"},
		{At: at(7.2), Kind: Syslog, Detail: "<6>m1 ipxe: Configuring (net0)...... ok"},
		{At: at(8), Took: took(0.5), Kind: HTTP, Name: "/52:54:00:00:00:01/auto.ipxe"},
		{At: at(10), Took: took(1), Kind: HTTP, Name: "/vmlinuz-x86_64"},
		{At: at(12), Took: took(1), Kind: Trouble, Name: "/initramfs-x86_64?a"},
		{At: at(13), Kind: DHCP, Name: "DISCOVER"},
		{At: at(14), Kind: DHCP, Name: "NAK"},
		{At: at(14), Kind: Trouble},
		{At: at(15), Kind: Syslog},
		{At: at(16), Took: took(0.5), Kind: HTTP, Name: "/2009-04-04/meta-data/hostname"},
		{At: at(17), Kind: Syslog},
		{At: at(20), Took: took(3.5), Kind: HTTP, Name: "/debian.raw"},
		{At: at(21), Took: took(5), Kind: Stream}, // it began before the file
		{At: at(22), Machine: "another", Kind: Syslog},
	} {
		b.Add(e)
	}
	want := []Step{
		{StepDHCP, at(0), at(2), false}, {StepLoader, at(2.5), at(5), false}, {StepIPXEDHCP, at(6), at(7), false},
		{StepScript, at(7.5), at(8), false}, {StepKernel, at(9), at(10), false}, {StepInitramfs, at(11), at(12), true},
		{StepOSDHCP, at(13), at(14), true}, {StepSyslog, at(15), at(17), false}, {StepMetadata, at(15.5), at(16), false},
		{StepAgent, at(16), at(21), false}, {StepFiles, at(16.5), at(20), false},
	}
	if diff := cmp.Diff(want, b.Steps("")); diff != "" {
		t.Error(diff)
	}
	if got := len(b.Steps("another")); got != 1 {
		t.Errorf("the other machine has %d steps", got)
	}
}

// TestStepsOfIPv6: the boot begins with what firmware asks. The IP stack of UEFI asks before, and iPXE tries DHCPv4.
func TestStepsOfIPv6(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(1e9+seconds, 0) }
	b := Boot{Only6: true}
	for _, e := range []Event{
		{At: at(0), Kind: DHCP, IPv6: true, Name: "SOLICIT"},
		{At: at(1), Kind: DHCP, IPv6: true, Name: "REPLY"},
		{At: at(2), Kind: DHCP, IPv6: true, Name: "SOLICIT", VendorClass: "HTTPClient:Arch:00016:UNDI:003000"},
		{At: at(3), Kind: DHCP, IPv6: true, Name: "REPLY"},
		{At: at(4), Kind: HTTP, Name: "/ipxe/ipxe.efi"},
		{At: at(5), Kind: DHCP, IPv6: true, Name: "SOLICIT", VendorClass: "PXEClient", UserClass: "Tinkerbell"},
		{At: at(6), Kind: DHCP, IPv6: true, Name: "REPLY"},
		{At: at(7), Kind: DHCP, Name: "DISCOVER", VendorClass: "PXEClient:Arch:00007", UserClass: "Tinkerbell"},
	} {
		b.Add(e)
	}
	want := []Step{
		{StepDHCP, at(2), at(3), false}, {StepLoader, at(4), at(4), false}, {StepIPXEDHCP, at(5), at(6), false},
	}
	if diff := cmp.Diff(want, b.Steps("")); diff != "" {
		t.Error(diff)
	}
}

// TestTorn is about an answer that the server does not end.
func TestTorn(t *testing.T) {
	for name, flag := range map[string]uint8{"FIN": flagFIN, "RST": flagRST} {
		t.Run(name, func(t *testing.T) {
			c := &conn{lan: newLAN(t), up: 1, down: 0xffffffe0}
			c.send("GET /kernel HTTP/1.1\r\n\r\n")
			c.receive(0, ok+"Content-Length: 10\r\n\r\n01234")
			c.send("")
			c.want()
			c.receive(flag, "")
			c.want(Event{
				Machine: machine.String(), Kind: Trouble, Name: "/kernel", Bytes: 5,
				Detail: "HTTP answer for /kernel ends after 5 of 10 bytes",
			})
			c.receive(flag, "") // again
			c.want()

			c.send("GET /whole HTTP/1.1\r\n\r\n")
			c.receive(0, ok+"Content-Length: 3\r\n\r\nabc")
			c.receive(flagFIN, "") // before the machine acknowledged it
			c.send("")
			c.want(Event{Machine: machine.String(), Kind: HTTP, Name: "/whole", Bytes: 3})
		})
	}
}

func TestSyslogAndStream(t *testing.T) {
	l := newLAN(t)
	l.put(udp(machine, node, netip.AddrPortFrom(client, 2000), netip.AddrPortFrom(service, 514), []byte("<133>line")))
	l.want(Event{Machine: machine.String(), Kind: Syslog, Detail: "<133>line"})
	from, to := netip.AddrPortFrom(client, 4000), netip.AddrPortFrom(service, 42113)
	up := func(flags uint8) {
		header := segment(1, 0, 0)
		header[13] = flags
		l.put(frame(machine, node, from, to, unix.IPPROTO_TCP, header, nil))
	}
	down := func(flags uint8, payload string) {
		l.put(frame(node, machine, to, from, unix.IPPROTO_TCP, segment(1, 1, flags), []byte(payload)))
	}
	up(flagSYN)
	up(flagSYN) // again
	began := l.now.Add(-time.Second)
	down(flagSYN, "")
	down(0, strings.Repeat("GET / HTTP/1.1\r\n", 2)) // nobody reads it
	l.want()
	down(flagFIN, "")
	if len(l.events) != 1 || l.events[0].Took != l.now.Sub(began) {
		t.Fatalf("got %v", l.events)
	}
	l.want(Event{Machine: machine.String(), Kind: Stream})
	up(flagFIN)
	up(flagRST)
	l.want()
}
