package sock

import (
	"context"
	"net"
	"net/netip"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// crowded is a container with little free memory.
type crowded struct{}

func (crowded) Limit() int64         { return 256 << 20 }
func (crowded) Used() (int64, error) { return 160 << 20, nil }

// holder is of a charge.
type holder struct{}

func (holder) Evict() {}

// What a client leaves unread is bounded, or a rack that loads files at one moment fills the container's memory with it;
// as far as there is memory, a download has what the kernel gives, and where it is short, less than others.
func TestUnsentBytesAreBounded(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	account := admission.New(admission.Limits{Memory: 1 << 30, Descriptors: 1 << 20}, nil)
	var roomy, short admission.Charge
	route := account.Route("files")
	for _, charge := range []*admission.Charge{&roomy, &short} {
		if why := route.Admit(charge, holder{}, netip.MustParseAddr("192.0.2.1"), admission.Cost{}); why != admission.Admitted {
			t.Fatal(why)
		}
	}
	accepted := make(chan *net.TCPConn, 1)
	connect(t, backend(t, func(c *net.TCPConn) { accepted <- c; <-t.Context().Done() }))
	conn := <-accepted
	bound := func() (bytes int, locked bool) {
		raw, err := conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) {
			bytes, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
			locks, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BUF_LOCK)
			locked = err != nil && bytes < unsent[Largest] || locks&sendLock != 0
		})
		return bytes / 2, locked // the kernel takes as much again for itself
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var set error
	if err := raw.Control(func(fd uintptr) { set = Options{}.Set(int(fd)) }); err != nil || set != nil {
		t.Fatal(err, set)
	}
	if bytes, locked := bound(); bytes != sent[Small] || !locked {
		t.Errorf("a new connection holds %d bytes, bounded %v", bytes, locked)
	}
	var b StreamBuffers
	if size, _ := b.Resize(&roomy, conn, Largest); size != Largest {
		t.Errorf("a download has size %d", size)
	}
	if bytes, locked := bound(); locked {
		t.Errorf("large buffers hold %d bytes at most", bytes)
	}
	b.Resize(&roomy, conn, Small)
	if bytes, locked := bound(); bytes != sent[Small] || !locked {
		t.Errorf("at its end the stream holds %d bytes, bounded %v", bytes, locked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { account.Run(ctx, crowded{}); close(done) }()
	defer func() { cancel(); <-done }()
	for end := time.Now().Add(time.Minute); !short.Short(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("memory does not become short")
		}
	}
	if size, _ := b.Resize(&short, conn, Largest); size != Least {
		t.Errorf("where memory is short a download has size %d", size)
	}
	if bytes, locked := bound(); bytes != sent[Least] || !locked {
		t.Errorf("where memory is short it holds %d bytes, bounded %v", bytes, locked)
	}
}
