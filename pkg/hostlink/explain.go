package hostlink

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// explain makes a [Fault] of every error, so that each has a cause and a remedy. One that is a fault already, or that
// wraps one, stays as it is.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Fault](err); ok {
		return err
	}
	errno, _ := asErrno(err)
	switch {
	case errors.Is(err, errNoLink), errno == unix.ENODEV, errno == unix.ENXIO, errno == unix.EEXIST:
		return newFault(ChangedMeanwhile, err,
			"an interface came or went while the listener was made",
			"nothing, if the next try succeeds; otherwise look for another program that changes the pod's interfaces")
	case errno == unix.EPERM || errno == unix.EACCES:
		return newFault(Forbidden, err,
			"the kernel, or a security module, forbids a step although NET_ADMIN is there",
			"allow the container's seccomp, AppArmor or SELinux profile netlink, flock and /proc")
	case errno == unix.ENOMEM || errno == unix.ENOBUFS || errno == unix.EMFILE || errno == unix.ENFILE ||
		errno == unix.EAGAIN || errno == unix.EBUSY || errno == unix.EINTR:
		return newFault(NoResources, err,
			"the kernel is out of memory or descriptors, or too busy to answer",
			"raise the container's memory limit, or look at the load of the node")
	case errors.Is(err, os.ErrNotExist), errno == unix.EPROTONOSUPPORT, errno == unix.EAFNOSUPPORT,
		errno == unix.EOPNOTSUPP, errno == unix.ENOPROTOOPT, errno == unix.ENOSYS:
		return newFault(OldKernel, err,
			"the node's kernel lacks what a listener needs",
			"run Linux 4.20 or newer with rtnetlink and network namespaces")
	default:
		return newFault(Refused, err,
			"the kernel refused a step, or answered what cannot be read",
			"look at the node's kernel log (dmesg), and report this line")
	}
}

func busy() *Fault {
	return newFault(Busy, nil,
		"another broadcast-init of this pod has been changing its listeners for "+lockMost.String(),
		"nothing, if it ends; otherwise end it: delete the pod")
}

// CauseOf is the cause of an error of this package.
func CauseOf(err error) Cause {
	if fault, ok := errors.AsType[*Fault](explain(err)); ok {
		return fault.Cause
	}
	return Refused
}
