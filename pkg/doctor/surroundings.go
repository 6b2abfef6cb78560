package doctor

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/tinkerbell/stack/pkg/doctor/link"
	"github.com/tinkerbell/stack/pkg/frame"
)

// surroundings are what is heard on the link without asking.
type surroundings struct {
	end func()

	mu       sync.Mutex
	stations map[frame.MAC]bool
	tags     map[uint16]bool
	servers  map[netip.Addr]bool // of DHCP, that answer others
	machine  bool                // the machine itself speaks
	looped   bool                // our own frames come back
}

// ofSwitches begin the groups by which a switch speaks to what is plugged in, whatever the VLAN: STP and LLDP, CDP, and
// who listens to which group (IGMP, MLD).
var ofSwitches = [][]byte{
	{0x01, 0x80, 0xc2, 0, 0}, {0x01, 0, 0x0c, 0xcc, 0xcc}, {0x01, 0, 0x5e, 0, 0, 0x16}, {0x33, 0x33, 0, 0, 0, 0x16},
}

// most is how many stations, tags and servers are kept.
const most = 64

// listen hears the link until end is called.
func listen(l *link.Link, machine net.HardwareAddr) *surroundings {
	s := &surroundings{stations: map[frame.MAC]bool{}, tags: map[uint16]bool{}, servers: map[netip.Addr]bool{}}
	mac := frame.MAC(machine)
	s.end = l.Tap(func(in link.Received) {
		s.mu.Lock()
		defer s.mu.Unlock()
		from := frame.MAC(in.Frame[6:12])
		switch tag := tagOf(in); {
		case from == l.MAC:
			s.looped = true
			return
		case slices.ContainsFunc(ofSwitches, func(group []byte) bool { return bytes.HasPrefix(in.Frame, group) }):
			return
		case tag != 0:
			if len(s.tags) < most {
				s.tags[tag] = true
			}
			return
		}
		if len(s.stations) < most {
			s.stations[from] = true
		}
		if from == mac {
			s.machine = true
		}
		const reply, port, chaddr = 2, 68, 28
		d, fault := frame.Parse(in.Frame, frame.Trust)
		if fault == frame.OK && d.Dst.Port() == port && len(d.Payload) > chaddr+6 && d.Payload[0] == reply &&
			frame.MAC(d.Payload[chaddr:]) != mac && len(s.servers) < most {
			s.servers[d.Src.Addr()] = true
		}
	})
	return s
}

// tagOf is the VLAN that a frame is for, whoever took the tag off.
func tagOf(in link.Received) uint16 {
	const vlan, provider = 0x8100, 0x88a8
	if t := binary.BigEndian.Uint16(in.Frame[12:]); in.VLAN == 0 && (t == vlan || t == provider) && len(in.Frame) > 16 {
		return binary.BigEndian.Uint16(in.Frame[14:]) & 0xfff
	}
	return in.VLAN
}

// air is what was heard so far.
type air struct {
	stations, servers int
	one               frame.MAC // of the stations
	tags              []uint16
	machine, looped   bool
}

func (s *surroundings) heard() (a air) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for mac := range s.stations {
		a.one = mac
	}
	a.stations, a.servers, a.machine, a.looped = len(s.stations), len(s.servers), s.machine, s.looped
	a.tags = slices.Sorted(maps.Keys(s.tags))
	return a
}
