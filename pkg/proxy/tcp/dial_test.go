package tcp

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/endpoint"
)

// Both sockets of a session have the options by which the kernel finds a dead peer.
func TestOptions(t *testing.T) {
	r := start(t, Settings{}, backend(t, echo))
	look := func(s *session, of func(*session) *side) (got [5]int) {
		done := make(chan struct{})
		s.do(func() {
			defer close(done)
			for i, o := range [5][2]int{
				{unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
				{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}, {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
				{unix.IPPROTO_TCP, unix.TCP_NODELAY},
			} {
				got[i], _ = unix.GetsockoptInt(of(s).fd, o[0], o[1])
			}
		})
		<-done
		return got
	}
	check := func(want, endpoint [5]int) {
		t.Helper()
		conn := r.dial(t)
		go func() { _, _ = conn.Write(make([]byte, 2*longBytes)) }()
		if _, err := io.ReadFull(conn, make([]byte, 2*longBytes)); err != nil {
			t.Fatal(err)
		}
		for _, s := range slices.Collect(r.conns.All()) {
			if s.peer.Port() == conn.LocalAddr().(*net.TCPAddr).AddrPort().Port() {
				if got := look(s, func(s *session) *side { return &s.client }); got != want {
					t.Errorf("the client's end has %v, want %v", got, want)
				}
				if got := look(s, func(s *session) *side { return &s.server }); got != endpoint {
					t.Errorf("the endpoint's end has %v, want %v", got, endpoint)
				}
			}
		}
	}
	want := [5]int{1, 30, 10, 60000, 1}
	check(want, want)
}

// silent is an address where the kernel drops new connections: the queue of the listening socket is full.
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*syscall.SockaddrInet4).Port))
	for range 4 {
		c, err := net.DialTimeout("tcp", addr.String(), 200*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("the queue does not fill")
	return addr
}

// An endpoint that does not answer does not hold up a drain beyond its deadline, and is not blamed when the drain ends
// it.
func TestDrainWhileConnecting(t *testing.T) {
	const deadline = 30 * time.Second
	r := start(t, Settings{Dial: deadline, Drain: 100 * time.Millisecond}, silent(t))
	r.dial(t)
	for r.Active() == 0 {
		time.Sleep(time.Millisecond)
	}
	started := time.Now()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(started); took >= deadline {
		t.Errorf("the drain took %s", took)
	}
	if n := testutil.CollectAndCount(r.dials); n != 0 {
		t.Errorf("%d kinds of failed dials were counted", n)
	}
}

// descriptors leaves the process only so many descriptors to open.
func descriptors(t *testing.T, left int) (restore func()) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	settle(t)
	var taken []int
	for { // until no lower descriptor is free
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, fd)
		if n := len(taken); n > 64 && taken[n-1] == taken[n-64]+63 {
			break
		}
	}
	low := limit
	low.Cur = uint64(taken[len(taken)-1] + 1 + left)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
		for _, fd := range taken {
			_ = unix.Close(fd)
		}
	}
}

// settle waits until the process neither opens nor closes descriptors. An earlier test may still be closing some, which
// would be free below the limit.
func settle(t *testing.T) {
	t.Helper()
	for same, last := 0, -1; same < 10; time.Sleep(5 * time.Millisecond) {
		open := descriptorsOpen(t)
		if open == last {
			same++
		} else {
			same, last = 0, open
		}
	}
}

// Without descriptors for the endpoint's end, the client is refused and no endpoint is blamed.
func TestNoDescriptorForEndpoint(t *testing.T) {
	r := start(t, Settings{}, backend(t, echo), backend(t, echo))
	restore := descriptors(t, 2) // the client's socket in this process, and the one that is accepted
	err := r.refusal()
	restore()
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	if n := testutil.ToFloat64(r.dials.WithLabelValues("r", "resources")); n != 1 {
		t.Errorf("%v failed dials were counted, want 1", n)
	}
	for _, e := range pool(r).Status() {
		if e.Failures != 0 {
			t.Errorf("endpoint %s is blamed %d times", e.Address, e.Failures)
		}
	}
}

func pool(r running) *endpoint.Pool { return r.settings.Load().Pool }

// While there is no descriptor for a connection, clients wait in the kernel, and accepting is not tried again and
// again.
func TestNoDescriptorForClient(t *testing.T) {
	r := start(t, Settings{}, backend(t, echo))
	restore := descriptors(t, 1)
	conn := r.dial(t)
	refused := func() float64 { return testutil.ToFloat64(r.refusals.WithLabelValues("r", "resources")) }
	for refused() < 3 {
		time.Sleep(time.Millisecond)
	}
	restore()
	_, _ = conn.Write([]byte("x"))
	if n, err := conn.Read(make([]byte, 1)); n != 1 {
		t.Errorf("got %v of an echo after the shortage", err)
	}
	if n := refused(); n > 20 {
		t.Errorf("accept was tried %v times", n)
	}
}
