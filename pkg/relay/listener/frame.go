package listener

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
)

// Fault is the reason for which a frame is not to be read, as a packet socket tells it. The zero value is none.
type Fault uint8

// The faults.
const (
	OK        Fault = iota
	OtherHost       // for another station or another VLAN, or sent by this host
	Truncated       // longer than any packet that could be relayed
)

// The parts of struct tpacket_auxdata (packet(7)) that matter.
const (
	auxStatus  = 0
	auxVLAN    = 16
	auxLen     = 20
	vlanIDMask = 0x0fff
)

// Frame is frame i of a batch, and the state of its checksum. The frame is there in spite of the fault OtherHost,
// if it is whole.
func Frame(in *mmsg.RecvBatch, i int) (b []byte, sum frame.Checksum, fault Fault) {
	b, whole := in.Packet(i)
	// The filter refuses these as well; a socket that was opened before its interface was renamed, or a kernel
	// without the filter's extensions, must not leak another VLAN's requests.
	if kind := in.Link(i).Pkttype; kind == unix.PACKET_OTHERHOST || kind == unix.PACKET_OUTGOING {
		return b, frame.Verify, OtherHost
	}
	if !whole {
		return nil, frame.Verify, Truncated
	}
	if aux := in.Message(i, unix.SOL_PACKET, unix.PACKET_AUXDATA); len(aux) >= auxLen {
		status := *(*uint32)(unsafe.Pointer(&aux[auxStatus]))
		if status&(unix.TP_STATUS_CSUMNOTREADY|unix.TP_STATUS_CSUM_VALID) != 0 {
			sum = frame.Trust
		}
		if status&unix.TP_STATUS_VLAN_VALID != 0 && *(*uint16)(unsafe.Pointer(&aux[auxVLAN]))&vlanIDMask != 0 {
			return b, sum, OtherHost
		}
	}
	return b, sum, OK
}
