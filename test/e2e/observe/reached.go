package observe

import (
	"fmt"
	"net"
)

// reach is how far a machine's last transfer has come.
type reach struct {
	kind  Kind // TFTP or HTTP
	name  string
	bytes int64
	total int64 // 0: not known
}

func (f reach) String() string {
	if f.total > 0 {
		return fmt.Sprintf("%s %s: %d of %d bytes", f.kind, f.name, f.bytes, f.total)
	}
	return fmt.Sprintf("%s %s: %d bytes", f.kind, f.name, f.bytes)
}

// Reached says how far the last transfer of the machine with an Ethernet address has come. The text changes with each
// byte that is new to the wire; what is sent again changes nothing. It is empty where the machine has begun none.
func (s *Sniffer) Reached(machine string) string { return s.tracker.Reached(machine) }

// Reached is [Sniffer.Reached]. It may be called from any goroutine.
func (t *Tracker) Reached(machine string) string {
	addr, err := net.ParseMAC(machine)
	if err != nil || len(addr) != 6 {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f, ok := t.reached[[6]byte(addr)]; ok {
		return f.String()
	}
	return ""
}

// came takes note of how far a transfer has come.
func (t *Tracker) came(machine [6]byte, f reach) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.reached) >= maxFlows {
		clear(t.reached)
	}
	t.reached[machine] = f
}
