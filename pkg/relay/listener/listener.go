// Package listener receives frames on an interface that may come and go, by a packet socket, which also sends.
package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/backoff"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/socket"
)

// Config makes a [Listener]. T is its user's description of the interface.
type Config[T any] struct {
	// Name is the interface's.
	Name string
	// Protocol is the EtherType that the socket gets, and Filter selects among its frames.
	Protocol uint16
	Filter   []bpf.RawInstruction
	// Groups are the Ethernet groups whose frames the interface has to take.
	Groups []frame.MAC
	// Headroom is how many bytes are left free in front of each frame.
	Headroom int
	// Describe looks at the interface when the socket is opened, and again when a link or an address changes.
	Describe func(*net.Interface) T
	// Clock is the clock of Handle, in nanoseconds.
	Clock func() int64
	// Handle is called with each batch of n frames, and when it came; they are in the listener's batch during the call.
	Handle func(n int, now int64)
	// Changed is called when the listener has opened or closed.
	Changed func(open bool)
	// Lost is called with the number of frames that the kernel dropped, since the socket's buffer was full.
	Lost   func(frames uint32)
	Logger *slog.Logger
}

// Listener outlives its interface: while that is missing or down, it waits for it.
type Listener[T any] struct {
	config    Config[T]
	recvBatch *mmsg.RecvBatch
	opened    atomic.Pointer[Opened[T]]
	why       atomic.Pointer[string] // why it is not open
	changed   chan struct{}          // a link has changed
	counted   int64                  // the clock when the kernel's count of dropped frames was last read
}

// Opened is the open socket of a listener, and its interface. It is never changed, only replaced.
type Opened[T any] struct {
	*socket.Socket
	Index int // of the interface
	MAC   frame.MAC
	MTU   int
	Info  T
}

// Times between two attempts to open a listener. Link events shorten them.
const (
	reopenFirst = 250 * time.Millisecond
	reopenMost  = 5 * time.Second
)

// ReceiveBuffer holds the packets that arrive while the relay does not run, in bytes as the kernel counts (some 1,300
// packets per MiB).
const ReceiveBuffer = 4 << 20

// New makes a listener that is not open.
func New[T any](config Config[T]) *Listener[T] {
	l := &Listener[T]{config: config, changed: make(chan struct{}, 1), recvBatch: mmsg.NewRecvBatch(config.Headroom)}
	l.down("starting")
	return l
}

// RecvBatch is where Handle finds the frames.
func (l *Listener[T]) RecvBatch() *mmsg.RecvBatch { return l.recvBatch }

// Opened is the open socket, nil while there is none.
func (l *Listener[T]) Opened() *Opened[T] { return l.opened.Load() }

// SetOpened opens the listener without an interface, for tests.
func (l *Listener[T]) SetOpened(open *Opened[T]) { l.opened.Store(open) }

// Wake has the listener look at its interface again.
func (l *Listener[T]) Wake() {
	select {
	case l.changed <- struct{}{}:
	default: // the listener has not taken the last one yet
	}
}

// Run opens the listener whenever its interface allows it, and reads it until ctx is done. Packets may leave through
// it until drained is closed.
func (l *Listener[T]) Run(ctx context.Context, drained <-chan struct{}) error {
	name, logger := l.config.Name, l.config.Logger
	wait := backoff.Backoff{First: reopenFirst, Most: reopenMost}
	logged := ""
	for ctx.Err() == nil {
		opened, err := l.open()
		if errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("failed to open listener %s: %w (the container needs the capability NET_RAW)", name, err)
		}
		if err != nil {
			l.down(err.Error())
			if logged != err.Error() {
				logged = err.Error()
				logger.Warn("waiting for listener", "listener", name, "error", err.Error())
			}
			l.pause(ctx, wait.Next())
			continue
		}
		wait.Reset()
		logged = ""
		l.up(opened)
		logger.Info("listening", "listener", name, "mac", net.HardwareAddr(opened.MAC[:]).String(), "mtu", opened.MTU)
		since := time.Now()
		err = l.serve(ctx, opened)
		if ctx.Err() != nil {
			<-drained
		}
		l.down("closed")
		if closeErr := opened.Close(); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
		if ctx.Err() == nil {
			logger.Warn("lost listener", "listener", name, "error", err.Error())
			if time.Since(since) < reopenFirst { // never in a tight loop
				l.pause(ctx, reopenFirst)
			}
		}
	}
	return nil
}

// pause waits for a time, a change of a link, or the end.
func (l *Listener[T]) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-l.changed:
	case <-time.After(d):
	}
}

func (l *Listener[T]) up(open *Opened[T]) {
	l.opened.Store(open)
	l.config.Changed(true)
}

func (l *Listener[T]) down(why string) {
	l.why.Store(&why)
	l.opened.Store(nil)
	l.config.Changed(false)
}

// Ready returns an error while the listener is not open.
func (l *Listener[T]) Ready() error {
	if l.opened.Load() != nil {
		return nil
	}
	return fmt.Errorf("listener %s: %s", l.config.Name, *l.why.Load())
}

// missing says what to do about an interface that is not here: in a pod it is made, on a host it has another name.
func missing(name string) error {
	var others []string
	links, _ := net.Interfaces()
	for _, link := range links {
		if link.Flags&net.FlagLoopback == 0 && len(link.HardwareAddr) == 6 {
			others = append(others, link.Name)
		}
	}
	if len(others) == 0 {
		return fmt.Errorf("no interface %s here: broadcast-init makes it, or the listener is misnamed", name)
	}
	return fmt.Errorf("no interface %s here: in a pod broadcast-init makes it, or the listener is misnamed; "+
		"on a host listen on its own: DHCP_RELAY_LISTENERS=%s (here are: %s)", name, others[0], strings.Join(others, ", "))
}

// look finds the interface and describes it.
func (l *Listener[T]) look() (*Opened[T], error) {
	name := l.config.Name
	link, err := net.InterfaceByName(name)
	switch {
	case err != nil:
		return nil, missing(name)
	case link.Flags&net.FlagUp == 0:
		return nil, fmt.Errorf("interface %s is down", name)
	case link.Flags&net.FlagRunning == 0:
		return nil, fmt.Errorf("interface %s has no carrier: its parent on the node is down, or a cable is out", name)
	case len(link.HardwareAddr) != 6:
		return nil, fmt.Errorf("interface %s is no Ethernet: its address is %q", name, link.HardwareAddr)
	}
	return &Opened[T]{
		Index: link.Index, MAC: frame.MAC(link.HardwareAddr), MTU: link.MTU, Info: l.config.Describe(link),
	}, nil
}

// open makes the packet socket. It is bound only after its filter is attached, so that it never holds a frame that
// the filter would have refused.
func (l *Listener[T]) open() (*Opened[T], error) {
	open, err := l.look()
	if err != nil {
		return nil, err
	}
	s, err := socket.New(unix.AF_PACKET, unix.SOCK_RAW, "listener "+l.config.Name)
	if err != nil {
		return nil, err
	}
	err = s.Control(func(fd int) error {
		if err := socket.Attach(fd, l.config.Filter); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
			return os.NewSyscallError("setsockopt PACKET_AUXDATA", err)
		}
		// Not known before Linux 4.20; the filter refuses own transmissions too.
		_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, ReceiveBuffer) // as far as rmem_max allows
		for _, group := range l.config.Groups {
			membership := unix.PacketMreq{
				Ifindex: int32(open.Index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(group)),
			}
			copy(membership.Address[:], group[:])
			if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &membership); err != nil {
				return os.NewSyscallError("setsockopt PACKET_ADD_MEMBERSHIP", err)
			}
		}
		return os.NewSyscallError("bind",
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: mmsg.Htons(l.config.Protocol), Ifindex: open.Index}))
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	open.Socket = s
	return open, nil
}

// serve reads requests until the socket fails, the interface changes, or ctx is done.
func (l *Listener[T]) serve(ctx context.Context, open *Opened[T]) error {
	ended := make(chan error, 1)
	go func() {
		ended <- open.Pump(l.recvBatch, func(n int) {
			now := l.config.Clock()
			l.countLost(open, now)
			l.config.Handle(n, now)
		})
	}()
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			open.Stop()
			return <-ended
		case <-l.changed:
			found, err := l.look()
			if err == nil && found.Index == open.Index {
				// The same interface, perhaps with another address, MAC or MTU: the socket stays.
				found.Socket = open.Socket
				l.opened.Store(found)
				continue
			}
			if err == nil {
				err = errors.New("another interface has its name")
			}
			open.Stop()
			<-ended
			return err
		}
	}
}

// countEvery is how often the kernel's count of lost frames is read: the system call has the scheduler's monitor thread
// run for some milliseconds (see socket.Pump), which costs as much as a hundred packets.
const countEvery = 10 * time.Second

// countLost counts the frames that the kernel dropped. It reads the kernel's count while packets arrive: when none
// arrive, none are dropped.
func (l *Listener[T]) countLost(open *Opened[T], now int64) {
	if now-l.counted < countEvery.Nanoseconds() {
		return
	}
	l.counted = now
	_ = open.Control(func(fd int) error {
		statistics, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err == nil && statistics.Drops > 0 {
			l.config.Lost(statistics.Drops)
		}
		return err
	})
}
