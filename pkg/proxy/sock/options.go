package sock

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Options are the keepalive settings and the user timeout of a long connection.
type Options struct {
	// Keepalive is how long the connection is silent before the kernel probes its peer; 0 or less: it never does. The
	// kernel then sends three probes, a third of that apart; with UserTimeout set, that time decides instead how many.
	Keepalive time.Duration
	// UserTimeout is how long sent data may stay unacknowledged (TCP_USER_TIMEOUT, RFC 5482); 0 or less is the kernel's
	// own.
	UserTimeout time.Duration
}

// Set sets these options, small buffers for what is sent, and TCP_NODELAY.
func (o Options) Set(fd int) error {
	all := make(options, 0, 9)
	if o.Keepalive <= 0 {
		all.add(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
	} else {
		seconds := max(int(o.Keepalive/time.Second), 1)
		all.add(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
		all.add(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds)
		all.add(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, max(seconds/3, 1))
		if o.UserTimeout <= 0 { // else that decides how many probes there are (tcp(7))
			all.add(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3)
		}
	}
	all.add(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent[Small])
	all.add(unix.SOL_SOCKET, unix.SO_SNDBUF, sent[Small])
	all.add(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(max(o.UserTimeout, 0).Milliseconds()))
	all.add(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	return all.set(fd)
}

// SetUpstream sets what net.Dialer sets on a connection: TCP_NODELAY, and keepalive with 15 seconds.
func SetUpstream(fd int) error {
	return options{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15},
	}.set(fd)
}

// NoDelay sends small messages at once.
func NoDelay(fd int) error { return options{{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}}.set(fd) }

// options are levels, names and values.
type options [][3]int

func (o *options) add(level, name, value int) { *o = append(*o, [3]int{level, name, value}) }

// set sets all of them that it can.
func (o options) set(fd int) (failure error) {
	for _, each := range o {
		if err := unix.SetsockoptInt(fd, each[0], each[1], each[2]); err != nil && failure == nil {
			failure = os.NewSyscallError("setsockopt", err)
		}
	}
	return failure
}
