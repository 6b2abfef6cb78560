package peers

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/group"
	"github.com/tinkerbell/stack/pkg/relay/listener"
)

// etherType is that of hellos: IEEE 802 has set it aside for experiments and private use within a network.
const etherType = 0x88b5

const (
	// probeEvery is how many hellos a replica sends for each probe for the stack's address.
	probeEvery = 4
	// unanswered is the silence after which no other station has the address: three probes.
	unanswered = 3 * probeEvery * group.HelloEvery
	// settling is how many hellos a replica sends, and receives from each other replica, before it relays.
	settling = 3
)

// maxFrame is room for the longest frame that is sent.
const maxFrame = 128

// never is a time before all times.
const never = -1 << 62

// port is a listener that is open; nothing more is known of its interface.
type port = listener.Port[struct{}]

// station is this replica on one VLAN.
type station struct {
	peers    *Peers
	name     string
	group    *group.Group
	codec    *group.Codec // of run
	reader   *group.Codec // of the goroutine that reads hellos
	hello    *listener.Listener[struct{}]
	answers  *listener.Listener[struct{}] // nil: the stack has no address
	out      *mmsg.SendBatch
	frame    []byte
	stamp    int64        // of the process's first hello
	answered atomic.Int64 // when another station last answered for the stack's address
	said     int          // hellos since the listener opened
	settled  atomic.Bool  // they were enough
	view     group.View
}

// allNodes is the group that some answers of neighbours are sent to.
var allNodes = [16]byte{0xff, 2, 15: 1}

func newStation(p *Peers, name string, id uint64) (*station, error) {
	codec := func() *group.Codec { return group.NewCodec(p.config.Name+" "+name, p.config.Key) }
	s := &station{
		peers: p, name: name, group: group.New(id, p.start), codec: codec(), reader: codec(),
		frame: make([]byte, 0, maxFrame), stamp: p.start.UnixNano(),
	}
	s.answered.Store(never)
	s.out = mmsg.NewSendBatch(false, func(errno unix.Errno) {
		p.logLimiter.WarnAt(p.now(), "failed to reach other replicas", func() []any {
			return []any{"listener", name, "error", errno.Error()}
		})
	})
	heard, err := frame.HeardFilter()
	if err != nil {
		return nil, err
	}
	s.hello = s.listen(etherType, heard, s.hellos)
	switch address := p.config.Address; {
	case address.Is4():
		s.answers = s.listen(frame.EtherTypeARP, heard, s.arp)
	case address.Is6():
		neighbours, err := frame.NeighbourFilter()
		if err != nil {
			return nil, err
		}
		s.answers = s.listen(unix.ETH_P_IPV6, neighbours, s.neighbours, frame.GroupMAC(allNodes))
	}
	return s, nil
}

// listen makes a listener for one EtherType. What keeps it from opening is logged by the relay's own listener on the
// same interface.
func (s *station) listen(
	protocol uint16, filter []bpf.RawInstruction, handle func(n int, now int64), groups ...frame.MAC,
) *listener.Listener[struct{}] {
	return listener.New(listener.Config[struct{}]{
		Name: s.name, Protocol: protocol, Filter: filter, Groups: groups,
		Clock: s.peers.now, Handle: handle,
		Describe: func(*net.Interface) struct{} { return struct{}{} },
		Changed:  func(bool) {}, Lost: func(uint32) {},
		Logger: slog.New(slog.DiscardHandler),
	})
}

// wake has the listeners look at their interface again.
func (s *station) wake() {
	s.hello.Wake()
	if s.answers != nil {
		s.answers.Wake()
	}
}

// run reads the others' hellos, and sends its own, until ctx is done.
func (s *station) run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	said := make(chan struct{}) // closed when goodbye has been
	tasks.Go(func() error { return s.hello.Run(ctx, said) })
	if s.answers != nil {
		tasks.Go(func() error { return s.answers.Run(ctx, said) })
	}
	tasks.Go(func() error {
		defer close(said)
		tick := time.NewTicker(group.HelloEvery)
		defer tick.Stop()
		for n := 0; ; n++ {
			s.greet(s.peers.now(), n)
			select {
			case <-tick.C:
			case <-ctx.Done():
				s.goodbye(s.peers.now())
				return nil
			}
		}
	})
	return tasks.Wait()
}

// greet sends a hello, and probes for the stack's address.
func (s *station) greet(now int64, n int) {
	p := s.hello.Port()
	if p == nil {
		s.said = 0 // the other replicas' states are old
	}
	settled := s.said >= settling
	s.settled.Store(settled)
	s.group.Settled(settled)
	able := settled && s.peers.config.Able() == nil
	owner := settled && s.answers != nil && now-s.answered.Load() > int64(unanswered)
	self := s.group.Update(able, owner, false, now)
	if p != nil {
		s.say(p, self, now)
		if s.answers != nil && (n%probeEvery == 0 || !settled) {
			s.probe(p)
		}
		s.said++
	}
	s.show(self, now)
}

// show puts the state into metrics, and a change of it into the log.
func (s *station) show(self group.State, now int64) {
	view := s.group.View(now)
	s.peers.metrics.show(s.name, self, view)
	if view != s.view {
		s.view = view
		s.peers.config.Logger.Info("replicas on the VLAN", "listener", s.name, "peers", view.Peers,
			"owners", view.Owners, "owner", self.Owner, "share", float64(view.Share)/256)
	}
}

// goodbye sends a last hello, so that the others take over at once.
func (s *station) goodbye(now int64) {
	self := s.group.Update(false, false, true, now)
	if p := s.hello.Port(); p != nil {
		s.say(p, self, now)
	}
}

func (s *station) say(p *port, self group.State, now int64) {
	b := s.frame[:0]
	b = append(b, frame.Broadcast[:]...)
	b = append(b, p.MAC[:]...)
	b = append(b, etherType>>8, etherType&0xff)
	s.send(p, s.codec.Append(b, group.Hello{State: self, Stamp: s.stamp + now}))
}

// probe looks for another station that has the stack's address. The node below this listener does not receive the
// probe, and could not answer it (macvlan and ipvlan): silence means that this node has the address, or no station
// does.
func (s *station) probe(p *port) {
	if address := s.peers.config.Address; address.Is4() {
		// Without a sender's address, so that it changes no neighbour table (RFC 5227 section 2.1.1).
		probe := frame.ARP{Operation: frame.ARPRequest, SenderMAC: p.MAC, TargetIP: address.As4()}
		s.send(p, frame.AppendARP(s.frame[:0], p.MAC, frame.Broadcast, probe))
	} else {
		// With a sender's address: without one it would say that this host is about to take the target (RFC 4862 section
		// 5.4.3).
		s.send(p, frame.AppendSolicitation(s.frame[:0], p.MAC, frame.LinkLocal(p.MAC), address.As16()))
	}
}

func (s *station) send(p *port, b []byte) {
	s.out.AddFrame(b, p.Index)
	p.Send(s.out)
}

// hellos reads a batch of other replicas' hellos.
func (s *station) hellos(n int, now int64) {
	wall := time.Now()
	for i := range n {
		b, _, fault := listener.Frame(s.hello.RecvBatch(), i)
		if fault != listener.OK || len(b) < frame.EthernetLen {
			continue
		}
		hello, refusal := s.reader.Parse(b[frame.EthernetLen:], wall)
		if refusal != group.Accepted {
			s.refuse(now, refusal, b)
			continue
		}
		s.group.Receive(hello, now)
	}
}

func (s *station) refuse(now int64, refusal group.Refusal, b []byte) {
	s.peers.metrics.refused.WithLabelValues(s.name, refusal.String()).Inc()
	if refusal != group.BadCode && refusal != group.BadTime {
		return // another protocol, or another installation: both may share the VLAN
	}
	sender := net.HardwareAddr(append([]byte(nil), b[6:12]...))
	s.peers.logLimiter.WarnAt(now, "refused another replica's hello", func() []any {
		return []any{"listener", s.name, "mac", sender.String(), "reason", refusal.String(),
			"remedy", "give all replicas the same TOKEN_KEY, and their nodes the same time; otherwise it is forged"}
	})
}

// arp reads a batch of ARP frames.
func (s *station) arp(n int, _ int64) {
	for i := range n {
		b, _, fault := listener.Frame(s.answers.RecvBatch(), i)
		if fault != listener.OK {
			continue
		}
		if said, _, ok := frame.ParseARP(b); ok && netip.AddrFrom4(said.SenderIP) == s.peers.config.Address {
			s.answered.Store(s.peers.now())
		}
	}
}

// neighbours reads a batch of neighbour advertisements.
func (s *station) neighbours(n int, _ int64) {
	for i := range n {
		b, _, fault := listener.Frame(s.answers.RecvBatch(), i)
		if fault != listener.OK {
			continue
		}
		said, _, ok := frame.ParseNeighbourAdvertisement(b)
		if ok && netip.AddrFrom16(said.Target) == s.peers.config.Address {
			s.answered.Store(s.peers.now())
		}
	}
}
