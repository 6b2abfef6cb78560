package hostlink

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// number is an attribute of four bytes, in the machine's order.
func number(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// attributes reads the attributes of a message or of a nested attribute.
func attributes(t *testing.T, data []byte) map[uint16][]byte {
	t.Helper()
	list, err := nl.ParseRouteAttr(data)
	if err != nil {
		t.Fatal(err)
	}
	attrs := map[uint16][]byte{}
	for _, attr := range list {
		attrs[attr.Attr.Type] = attr.Value
	}
	return attrs
}

// TestNewListenerMessage checks the request as it is sent, for the kinds that not every kernel has.
func TestNewListenerMessage(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	tests := map[string]struct {
		kind Kind
		mac  net.HardwareAddr
		want map[uint16][]byte
		name string
		data map[uint16][]byte
	}{
		"macvlan": {
			kind: Macvlan, name: "macvlan", data: map[uint16][]byte{nl.IFLA_MACVLAN_MODE: number(nl.MACVLAN_MODE_BRIDGE)},
		},
		"macvlan with MAC address": {
			kind: Macvlan, mac: mac, want: map[uint16][]byte{unix.IFLA_ADDRESS: mac},
			name: "macvlan", data: map[uint16][]byte{nl.IFLA_MACVLAN_MODE: number(nl.MACVLAN_MODE_BRIDGE)},
		},
		"ipvlan has its parent's MAC address": {
			kind: IPvlan, mac: mac, name: "ipvlan", data: map[uint16][]byte{nl.IFLA_IPVLAN_MODE: {0, 0}}, // L2
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			message := newListener("temp0", test.kind, test.mac, 7, Link{Index: 5, MTU: 9000}).Serialize()
			header := message[:unix.SizeofNlMsghdr]
			if got := binary.NativeEndian.Uint16(header[4:]); got != unix.RTM_NEWLINK {
				t.Errorf("got message type %d, want RTM_NEWLINK", got)
			}
			const flags = unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL
			if got := binary.NativeEndian.Uint16(header[6:]); got != flags {
				t.Errorf("got flags %#x, want %#x", got, flags)
			}
			got := attributes(t, message[unix.SizeofNlMsghdr+unix.SizeofIfInfomsg:])
			info := attributes(t, got[unix.IFLA_LINKINFO])
			delete(got, unix.IFLA_LINKINFO)
			want := map[uint16][]byte{
				unix.IFLA_IFNAME: []byte("temp0\x00"), unix.IFLA_LINK: number(5), unix.IFLA_LINK_NETNSID: number(7),
				unix.IFLA_MTU: number(9000),
			}
			for attr, value := range test.want {
				want[attr] = value
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("attributes differ (-want +got):\n%s", diff)
			}
			if kind := string(info[nl.IFLA_INFO_KIND]); kind != test.name {
				t.Errorf("got kind %q, want %q", kind, test.name)
			}
			if diff := cmp.Diff(test.data, attributes(t, info[nl.IFLA_INFO_DATA])); diff != "" {
				t.Errorf("data of the kind differ (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRequestsNameTheNode checks that no request about the node can go astray to the pod's own namespace.
func TestRequestsNameTheNode(t *testing.T) {
	tests := map[string]struct {
		request *nl.NetlinkRequest
		kind    uint16
		header  int
		attr    uint16
	}{
		"link":      {getLink(7, 5), unix.RTM_GETLINK, unix.SizeofIfInfomsg, unix.IFLA_TARGET_NETNSID},
		"links":     {dumpLinks(7), unix.RTM_GETLINK, unix.SizeofIfInfomsg, unix.IFLA_TARGET_NETNSID},
		"addresses": {dumpAddresses(7, unix.AF_INET), unix.RTM_GETADDR, unix.SizeofIfAddrmsg, unix.IFA_TARGET_NETNSID},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			message := test.request.Serialize()
			if got := binary.NativeEndian.Uint16(message[4:]); got != test.kind {
				t.Errorf("got message type %d, want %d", got, test.kind)
			}
			got := attributes(t, message[unix.SizeofNlMsghdr+test.header:])
			if diff := cmp.Diff(map[uint16][]byte{test.attr: number(7)}, got); diff != "" {
				t.Errorf("attributes differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseShortMessages(t *testing.T) {
	for size := range unix.SizeofIfInfomsg {
		if _, err := parseLink(make([]byte, size)); err == nil {
			t.Errorf("got a link from %d bytes", size)
		}
	}
	for size := range unix.SizeofIfAddrmsg {
		if _, err := parseAddress(make([]byte, size)); err == nil {
			t.Errorf("got an address from %d bytes", size)
		}
	}
}

func TestRefused(t *testing.T) {
	tests := map[unix.Errno]Cause{
		unix.EPERM: NoHostAccess, unix.EACCES: NoHostAccess, unix.EOPNOTSUPP: NoKind, unix.EBUSY: OtherKind,
		unix.EADDRINUSE: MACTaken, unix.ENODEV: NoParent,
	}
	for errno, cause := range tests {
		err := refused(errno, Spec{Name: "macvlan0"}, Link{Name: "eth1"})
		wantCause(t, err, cause)
		if !errors.Is(err, errno) {
			t.Errorf("got %v, want the kernel's %v inside", err, errno)
		}
	}
	if err := refused(unix.EINVAL, Spec{Name: "macvlan0"}, Link{Name: "eth1"}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("got %v, want the kernel's EINVAL inside", err)
	}
}
