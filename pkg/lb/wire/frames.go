package wire

import (
	"fmt"
	"net"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Frames is a link as far as the frames of one EtherType are concerned. Send may be called while Receive waits.
type Frames struct {
	conn      *packet.Conn
	etherType uint16
	mac       frame.MAC
}

// OpenFrames opens a link for an EtherType.
func OpenFrames(link *net.Interface, etherType uint16) (*Frames, error) {
	if len(link.HardwareAddr) != 6 {
		return nil, fmt.Errorf("failed to open packet socket: link %s has no Ethernet address", link.Name)
	}
	all, err := bpf.Assemble([]bpf.Instruction{bpf.RetConstant{Val: maxPayload + frame.EthernetLen}})
	if err != nil {
		return nil, err
	}
	conn, err := packet.Listen(link, packet.Raw, int(etherType), &packet.Config{Filter: all})
	if err != nil {
		return nil, fmt.Errorf("failed to open packet socket on link %s: %w", link.Name, err)
	}
	return &Frames{conn: conn, etherType: etherType, mac: frame.MAC(link.HardwareAddr)}, nil
}

// maxPayload is more than a frame has.
const maxPayload = 1514

// Send sends a payload to a station, or to all.
func (f *Frames) Send(to frame.MAC, payload []byte) error {
	b := append(append(append([]byte(nil), to[:]...), f.mac[:]...), byte(f.etherType>>8), byte(f.etherType))
	_, err := f.conn.WriteTo(append(b, payload...), &packet.Addr{HardwareAddr: to[:]})
	return err
}

// Receive waits for a frame of another station. An error is for good.
func (f *Frames) Receive() (from frame.MAC, payload []byte, err error) {
	for b := make([]byte, frame.EthernetLen+maxPayload); ; {
		n, _, err := f.conn.ReadFrom(b)
		if err != nil {
			return frame.MAC{}, nil, err
		}
		if from := frame.MAC(b[6:12]); n > frame.EthernetLen && from != f.mac {
			return from, b[frame.EthernetLen:n], nil
		}
	}
}

// Close ends Receive.
func (f *Frames) Close() error { return f.conn.Close() }
