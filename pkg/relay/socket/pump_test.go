package socket

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/mmsg"
)

// patience is how long a test waits for what has to happen.
const patience = 30 * time.Second

// pumped is a Pump that counts what it gets.
type pumped struct {
	*Socket
	packets atomic.Int64
	ended   chan error
}

// pumpUDP begins a Pump of a UDP socket on port 2, whose packets are numbered.
func pumpUDP(t *testing.T, ns *nstest.NS) *pumped {
	t.Helper()
	p := &pumped{ended: make(chan error, 1)}
	p.Socket = open(t, ns, unix.AF_INET, unix.SOCK_DGRAM, func(fd int) error {
		// So that nothing is lost where the machine is too busy to let the Pump run.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrInet4{Port: 2})
	})
	in := mmsg.NewRecvBatch(0)
	go func() {
		p.ended <- p.Pump(in, func(n int) {
			for i := range n {
				b, _ := in.Packet(i)
				if got, want := int64(binary.BigEndian.Uint32(b)), p.packets.Load(); got != want {
					t.Errorf("got packet %d, want %d", got, want)
				}
				p.packets.Add(1)
			}
		})
	}()
	return p
}

// stop ends the Pump, and wants it to end as it should.
func (p *pumped) stop(t *testing.T) {
	t.Helper()
	p.Stop()
	select {
	case err := <-p.ended:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the Pump has not ended")
	}
	if n := waiting.Load(); n != 0 {
		t.Errorf("%d Pumps wait in the kernel afterwards", n)
	}
}

// sender sends numbered packets to pumpUDP's socket.
type sender struct {
	*Socket
	out  *mmsg.SendBatch
	sent int64
}

func newSender(t *testing.T, ns *nstest.NS) *sender { return newSenderOf(t, ns, 1) }

func newSenderOf(t *testing.T, ns *nstest.NS, port int) *sender {
	t.Helper()
	s := &sender{out: mmsg.NewSendBatch(false, func(errno unix.Errno) { t.Errorf("failed to send: %v", errno) })}
	s.Socket = open(t, ns, unix.AF_INET, unix.SOCK_DGRAM, func(fd int) error {
		return unix.Bind(fd, &unix.SockaddrInet4{Port: port})
	})
	return s
}

func (s *sender) send() {
	b := binary.BigEndian.AppendUint32(nil, uint32(s.sent))
	s.out.AddUDP(b, netip.MustParseAddrPort("127.0.0.2:2"), netip.MustParseAddr("127.0.0.1"), 0)
	s.Send(s.out)
	s.sent++
}

// until sends a packet every millisecond until something is true.
func (s *sender) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what + ": not so")
		}
		s.send()
	}
}

func setProcessors(t *testing.T, n int) {
	before := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

func inKernel() bool { return waiting.Load() == 1 }

// TestPumpWaitsInTheKernel: while packets come often, and until then and afterwards by the poller, without losing one
// or their order. Meanwhile the scheduler gets its processor whenever it asks for it.
func TestPumpWaitsInTheKernel(t *testing.T) {
	setProcessors(t, 2)
	ns := nstest.New(t)
	s, p := newSender(t, ns), pumpUDP(t, ns)
	arrived := func() bool { return p.packets.Load() == s.sent }
	s.send()
	testwait.Until(t, "the first packet arrives", arrived)
	if inKernel() {
		t.Error("the Pump waits in the kernel for a packet that may never come")
	}
	for range 3 {
		s.until(t, "the Pump waits in the kernel", inKernel)
		for range 100 {
			s.send()
		}
		testwait.Until(t, "packets arrive in the kernel", arrived)
		runtime.GC() // stops the world
		testwait.Until(t, "when no packets come the Pump waits by the poller", func() bool { return !inKernel() })
		s.send()
		testwait.Until(t, "a packet arrives by the poller", arrived)
	}
	s.until(t, "the Pump waits in the kernel", inKernel)
	p.stop(t)
}

// TestPumpLeavesNoPacketToThePoller: a packet that comes while the epoll does not watch the socket is handled before the
// Pump waits by the poller, which may not be told of it.
func TestPumpLeavesNoPacketToThePoller(t *testing.T) {
	setProcessors(t, 2)
	ns := nstest.New(t)
	s := newSender(t, ns)
	receiver := open(t, ns, unix.AF_INET, unix.SOCK_DGRAM, func(fd int) error {
		return unix.Bind(fd, &unix.SockaddrInet4{Port: 2})
	})
	handled := 0
	p := &pump{Socket: receiver, in: mmsg.NewRecvBatch(0), handle: func(n int) { handled += n }}
	var failed bool
	if err := receiver.conn.Control(func(epoll uintptr) {
		p.watch(epoll, 0)
		s.send()
		failed = p.rearm(epoll)
	}); err != nil || failed {
		t.Fatal(err, p.failed)
	}
	if handled != 1 {
		t.Errorf("handled %d packets, want 1", handled)
	}
}

// TestPumpLeavesAProcessor: not all processors wait in the kernel, so that others run.
func TestPumpLeavesAProcessor(t *testing.T) {
	setProcessors(t, 1)
	ns := nstest.New(t)
	s, p := newSender(t, ns), pumpUDP(t, ns)
	end := time.Now().Add(10 * settle)
	s.until(t, "time passes", func() bool {
		if inKernel() {
			t.Fatal("the Pump waits in the kernel with the only processor")
		}
		return time.Now().After(end)
	})
	testwait.Until(t, "packets arrive", func() bool { return p.packets.Load() == s.sent })
	p.stop(t)
}

// TestPumpStopsBehindItsBatch: also where it waits in the kernel and more packets are there already, as they always are
// on a busy link.
func TestPumpStopsBehindItsBatch(t *testing.T) {
	setProcessors(t, 2)
	for name, stop := range map[string]func(s *Socket){
		"Stop": (*Socket).Stop, "Close": func(s *Socket) { go s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			ns := nstest.New(t)
			s, late := newSender(t, ns), newSenderOf(t, ns, 3)
			socket := open(t, ns, unix.AF_INET, unix.SOCK_DGRAM, func(fd int) error {
				return unix.Bind(fd, &unix.SockaddrInet4{Port: 2})
			})
			in, ended, received := mmsg.NewRecvBatch(0), make(chan error, 1), 0
			var stopping atomic.Bool
			go func() {
				ended <- socket.Pump(in, func(n int) {
					switch {
					case stopping.Load():
						received += n
					case inKernel():
						for range 2 * mmsg.Batch {
							late.send()
						}
						stopping.Store(true)
						for stop(socket); !socket.stopped.Load(); {
							runtime.Gosched()
						}
					}
				})
			}()
			s.until(t, "the Pump waits in the kernel", stopping.Load)
			select {
			case <-ended:
			case <-time.After(patience):
				t.Fatal("the Pump has not ended")
			}
			if received > 0 {
				t.Errorf("the Pump handled %d packets behind its end", received)
			}
		})
	}
}

// TestPumpEndsWithItsLink: a packet socket fails when its interface goes down, also while the Pump waits in the kernel.
func TestPumpEndsWithItsLink(t *testing.T) {
	setProcessors(t, 2)
	ns, other := nstest.New(t), nstest.New(t)
	nstest.Veth(t, ns, "near", other, "far")
	index := ns.Link(t, "near").Attrs().Index
	p := &pumped{ended: make(chan error, 1)}
	p.Socket = open(t, ns, unix.AF_PACKET, unix.SOCK_RAW, func(fd int) error {
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: mmsg.Htons(0x88b5), Ifindex: index})
	})
	in := mmsg.NewRecvBatch(0)
	go func() { p.ended <- p.Pump(in, func(n int) { p.packets.Add(int64(n)) }) }()
	frame := append([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 0x88, 0xb5}, make([]byte, 46)...)
	far := open(t, other, unix.AF_PACKET, unix.SOCK_RAW, func(int) error { return nil })
	farIndex := other.Link(t, "far").Attrs().Index
	out := mmsg.NewSendBatch(false, func(errno unix.Errno) { t.Errorf("failed to send: %v", errno) })
	for end := time.Now().Add(patience); !inKernel(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the Pump does not wait in the kernel")
		}
		out.AddFrame(frame, farIndex)
		far.Send(out)
	}
	if err := ns.Links().LinkSetDown(ns.Link(t, "near")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		if !errors.Is(err, unix.ENETDOWN) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the Pump has not ended")
	}
}
