package soak

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/tinkerbell/stack/test/e2e/nameserver"
)

// zone is a name server whose answers live for a second.
type zone struct {
	server *nameserver.Server

	mu     sync.Mutex
	names  map[string][]netip.Addr // a value is never changed
	silent bool
}

func serveZone() (z *zone, err error) {
	z = &zone{names: map[string][]netip.Addr{}}
	z.server, err = nameserver.Serve(nameServer+":53", func() (nameserver.Zone, error) {
		z.mu.Lock()
		defer z.mu.Unlock()
		return nameserver.Zone{Addresses: maps.Clone(z.names), TTL: time.Second, Silent: z.silent}, nil
	}, nil)
	return z, err
}

// set says what the next answers are.
func (z *zone) set(name string, addrs ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	delete(z.names, name)
	for _, addr := range addrs {
		z.names[name] = append(z.names[name], netip.MustParseAddr(addr))
	}
}

// silence has the server answer nothing, or answer again.
func (z *zone) silence(on bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.silent = on
}
