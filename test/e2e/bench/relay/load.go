package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Load is what the generator sends: DISCOVERs of different machines, with the broadcast flag (which every candidate
// handles in the same way), or SOLICITs.
type Load struct {
	Interface string
	// IPv6 sends SOLICITs.
	IPv6 bool
	// Rate is in packets a second; 0 is as fast as possible.
	Rate     int
	Duration time.Duration
	// First is the first xid.
	First uint32
	// Stop ends the load early when it is closed. It may be nil.
	Stop <-chan struct{}
}

// Result is what the generator saw.
type Result struct {
	Sent     int     `json:"sent"`
	Answered int     `json:"answered"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
}

// linger is how long the generator waits for the last answers.
const linger = 400 * time.Millisecond

// Offsets in an Ethernet frame with IPv4 and UDP.
const (
	ethernetLen = 14
	dhcpAt      = ethernetLen + 20 + 8
	xidAt       = dhcpAt + 4
	chaddrAt    = dhcpAt + 28
	ipSumAt     = ethernetLen + 10
)

// Generate sends the load and counts the answers.
func Generate(load Load) (Result, error) {
	link, err := net.InterfaceByName(load.Interface)
	if err != nil {
		return Result{}, fmt.Errorf("failed to find interface %s: %w", load.Interface, err)
	}
	out, err := packetSocket(link.Index, 0x88b5) // a protocol that nobody speaks: it only sends
	if err != nil {
		return Result{}, err
	}
	defer unix.Close(out)
	var messages traffic = discovers{link.HardwareAddr}
	if load.IPv6 {
		messages = solicits{link.HardwareAddr}
	}
	in, err := packetSocket(link.Index, messages.etherType())
	if err != nil {
		return Result{}, err
	}
	defer unix.Close(in)
	if err := timeout(in, 50*time.Millisecond); err != nil {
		return Result{}, err
	}
	count := load.Rate * int(load.Duration/time.Millisecond) / 1000
	if load.Rate == 0 {
		count = int(load.Duration/time.Microsecond) * 2
	}
	g := &generator{load: load, messages: messages, start: time.Now()}
	g.sent, g.wait = make([]atomic.Int64, count), make([]int64, count)
	received := make(chan error, 1)
	var stop atomic.Bool
	go func() { received <- g.receive(newBatch(in, false), &stop) }()
	sent, sendErr := g.transmit(newBatch(out, false))
	time.Sleep(linger)
	stop.Store(true)
	if err := <-received; err != nil {
		return Result{}, err
	}
	result := Result{Sent: sent}
	waits := g.wait[:0:0]
	for _, w := range g.wait {
		if w > 0 {
			waits = append(waits, w)
		}
	}
	result.Answered = len(waits)
	slices.Sort(waits)
	if len(waits) > 0 {
		result.P50 = float64(waits[len(waits)/2]) / 1e3
		result.P99 = float64(waits[len(waits)*99/100]) / 1e3
	}
	return result, sendErr
}

func packetSocket(ifindex, protocol int) (int, error) {
	network := int(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, uint16(protocol))))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(network), Ifindex: ifindex}); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// traffic is what a load's packets are: frames of ever different machines, and the answers to them.
type traffic interface {
	// etherType is the EtherType of requests and answers.
	etherType() int
	// frame makes a request.
	frame() []byte
	// stamp makes a frame the request of machine n, whose low 24 bits are the transaction's number.
	stamp(frame []byte, n uint32)
	// answered finds the number of the transaction that a frame answers.
	answered(frame []byte) (n uint32, ok bool)
	// mask has the bits of the transaction's number that an answer tells.
	mask() uint32
}

type generator struct {
	load     Load
	messages traffic
	start    time.Time
	sent     []atomic.Int64 // when each packet was sent, in nanoseconds since start
	wait     []int64        // until its first answer
}

// tick is the least time between two batches of a paced load: at 20,000 packets a second, four leave at once.
const tick = 200 * time.Microsecond

func (g *generator) transmit(b *batch) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	frame := g.messages.frame()
	for i := range b.slots {
		copy(b.slots[i][:], frame)
		b.iovs[i].SetLen(len(frame))
	}
	sent := 0
	for sent < len(g.sent) {
		select {
		case <-g.load.Stop:
			return sent, nil
		default:
		}
		since := time.Since(g.start)
		if since > g.load.Duration+linger {
			break
		}
		due := batchSize
		if g.load.Rate > 0 {
			due = min(int(since.Seconds()*float64(g.load.Rate))+1-sent, batchSize)
			if due <= 0 {
				next := time.Duration(float64(sent) / float64(g.load.Rate) * 1e9)
				pause(max(next-since, tick))
				continue
			}
		} else if since > g.load.Duration {
			break
		}
		due = min(due, len(g.sent)-sent)
		now := int64(time.Since(g.start))
		for i := range due {
			g.sent[sent+i].Store(now)
			g.messages.stamp(b.slots[i][:len(frame)], g.load.First+uint32(sent+i))
		}
		if err := b.send(due); err != nil {
			return sent, err
		}
		sent += due
	}
	return sent, nil
}

func pause(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&ts, nil)
}

func (g *generator) receive(b *batch, stop *atomic.Bool) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for !stop.Load() {
		n, err := b.receive()
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return err
		}
		now := int64(time.Since(g.start))
		for i := range n {
			n, ok := g.messages.answered(b.packet(i))
			if !ok {
				continue
			}
			at := (n - g.load.First) & g.messages.mask()
			if int(at) < len(g.wait) && g.wait[at] == 0 {
				g.wait[at] = max(1, now-g.sent[at].Load())
			}
		}
	}
	return nil
}

// discovers are DISCOVERs from a network card.
type discovers struct{ mac net.HardwareAddr }

func (discovers) etherType() int { return unix.ETH_P_IP }

func (d discovers) frame() []byte { return discover(d.mac) }

func (discovers) stamp(frame []byte, n uint32) {
	binary.BigEndian.PutUint32(frame[xidAt:], n)
	// Different machines, in an order that spreads over hash tables.
	binary.BigEndian.PutUint32(frame[chaddrAt+2:], n*2654435761)
}

func (discovers) answered(p []byte) (n uint32, ok bool) {
	if len(p) < chaddrAt || p[23] != 17 || binary.BigEndian.Uint16(p[36:]) != 68 || p[dhcpAt] != 2 {
		return 0, false
	}
	return binary.BigEndian.Uint32(p[xidAt:]), true
}

func (discovers) mask() uint32 { return 0xffffffff }

// discover is a frame as PXE firmware sends it; its UDP sum is left out (zero), so that it may be changed.
func discover(mac net.HardwareAddr) []byte {
	m := make([]byte, 240)
	m[0], m[1], m[2] = 1, 1, 6
	m[10] = 0x80 // broadcast
	copy(m[28:], []byte{2, 0xbe})
	copy(m[236:], []byte{0x63, 0x82, 0x53, 0x63})
	m = append(m, 53, 1, 1, 57, 2, 5, 192, 55, 12, 1, 2, 3, 5, 6, 12, 13, 15, 43, 60, 66, 67)
	m = append(m, 97, 17, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 94, 3, 1, 3, 16, 93, 2, 0, 7)
	m = append(append(m, 60, 32), "PXEClient:Arch:00007:UNDI:003016"...)
	m = append(m, 255)
	m = append(m, make([]byte, max(0, 300-len(m)))...)

	frame := make([]byte, dhcpAt, dhcpAt+len(m))
	copy(frame, []byte{255, 255, 255, 255, 255, 255})
	copy(frame[6:], mac)
	binary.BigEndian.PutUint16(frame[12:], 0x0800)
	ip := frame[ethernetLen:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(20+8+len(m)))
	copy(ip[16:], []byte{255, 255, 255, 255})
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(frame[ipSumAt:], ^uint16(sum>>16+sum))
	udp := ip[20:]
	binary.BigEndian.PutUint16(udp[0:], 68)
	binary.BigEndian.PutUint16(udp[2:], 67)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(m)))
	return append(frame, m...)
}

// Echo answers every DISCOVER with an OFFER to its giaddr, or at an IPv6 address every RELAY-FORW with the SOLICIT in
// it as an ADVERTISE, until stop is closed. It returns how many it received.
func Echo(at net.IP, stop <-chan struct{}) (int, error) {
	domain, answer := unix.AF_INET, answerInPlace
	var own unix.Sockaddr
	if at4 := at.To4(); at4 != nil {
		own = &unix.SockaddrInet4{Port: 67, Addr: [4]byte(at4)}
	} else {
		domain, answer = unix.AF_INET6, turn6
		own = &unix.SockaddrInet6{Port: 547, Addr: [16]byte(at)}
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	if err := timeout(fd, 50*time.Millisecond); err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, own); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	b := newBatch(fd, true)
	received := 0
	for {
		select {
		case <-stop:
			return received, nil
		default:
		}
		n, err := b.receive()
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return received, err
		}
		received += n
		for i := range n {
			answer(b, i)
		}
		if err := b.send(n); err != nil {
			return received, err
		}
	}
}

// answerInPlace makes a request the server's answer.
func answerInPlace(b *batch, i int) {
	m := b.packet(i)
	if len(m) < 243 {
		return
	}
	m[0] = 2
	copy(m[16:], []byte{192, 0, 2, 50})
	copy(m[20:], []byte{10, 244, 0, 11})
	if m[240] == 53 {
		m[242] = 2
	}
	b.iovs[i].SetLen(len(m))
	name := (*unix.RawSockaddrInet4)(unsafe.Pointer(&b.names[i]))
	name.Addr = [4]byte(m[24:28])
	name.Port = binary.NativeEndian.Uint16([]byte{0, 67})
}
