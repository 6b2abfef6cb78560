package observe

import (
	"fmt"
	"net"
)

// far is how far a machine's last transfer has come.
type far struct {
	kind  Kind // TFTP or HTTP
	name  string
	bytes int64
	total int64 // 0: not known
}

func (f far) String() string {
	if f.total > 0 {
		return fmt.Sprintf("%s %s: %d of %d bytes", f.kind, f.name, f.bytes, f.total)
	}
	return fmt.Sprintf("%s %s: %d bytes", f.kind, f.name, f.bytes)
}

// Far says how far the last transfer of the machine with an Ethernet address has come. The text changes with each byte
// that is new to the wire; what is sent again changes nothing. It is empty where the machine has begun none.
func (s *Sniffer) Far(machine string) string { return s.tracker.Far(machine) }

// Far is [Sniffer.Far]. It may be called from any goroutine.
func (t *Tracker) Far(machine string) string {
	addr, err := net.ParseMAC(machine)
	if err != nil || len(addr) != 6 {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f, ok := t.fars[[6]byte(addr)]; ok {
		return f.String()
	}
	return ""
}

// came takes note of how far a transfer has come.
func (t *Tracker) came(machine [6]byte, f far) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.fars) >= maxFlows {
		clear(t.fars)
	}
	t.fars[machine] = f
}
