//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// arpInterval is the time between two probes.
const arpInterval = 100 * time.Millisecond

// sampleARP asks the link who has an address: probes without a sender's address, which change no neighbour table.
func sampleARP(ctx context.Context, link string, address [4]byte) (*owners, error) {
	ifi, err := net.InterfaceByName(link)
	if err != nil {
		return nil, fmt.Errorf("failed to find interface: %w", err)
	}
	protocol := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ARP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		return nil, fmt.Errorf("failed to open packet socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: ifi.Index}); err != nil {
		return nil, fmt.Errorf("failed to bind packet socket: %w", err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		return nil, fmt.Errorf("failed to set time-out: %w", err)
	}
	var mac [6]byte
	copy(mac[:], ifi.HardwareAddr)
	probe := slices.Concat([]byte{255, 255, 255, 255, 255, 255}, mac[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, mac[:],
		make([]byte, 10), address[:])
	o := &owners{Changes: []change{}}
	var reading sync.WaitGroup
	reading.Go(func() {
		b := make([]byte, 256)
		for ctx.Err() == nil {
			n, err := unix.Read(fd, b)
			// A reply for this station, from the address: the answer to a probe, and no announcement.
			if err != nil || n < 42 || b[21] != 2 || [4]byte(b[28:32]) != address || [6]byte(b[0:6]) != mac {
				continue
			}
			o.answer(net.HardwareAddr(b[22:28]).String())
		}
	})
	each(ctx, arpInterval, func() {
		o.probe(time.Now())
		_, _ = unix.Write(fd, probe) // what is lost is what is measured
	})
	reading.Wait()
	return o, nil
}
