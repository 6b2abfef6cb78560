package relay

import (
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
)

// TestCopyTakesNoAnswer: another machine on the link that repeats a machine's message word for word, with its own MAC
// address in the frame, gets no answer, and the machine does. The last sender is whose message decides.
func TestCopyTakesNoAnswer(t *testing.T) {
	const expired = int64(11 * time.Second)
	copier := frame.MAC{2, 0, 0, 0, 0, 0x66}
	private := ip("fe80::c0ff:ee") // of a system that makes its address of a secret (RFC 7217)
	tests := map[string]struct {
		peer    [16]byte
		senders []frame.MAC
		later   int64 // the last sender's message, after the one before
		want    Drop
		answer  frame.MAC
	}{
		"the machine alone":                      {peer: clientIP, senders: []frame.MAC{clientMAC}, answer: clientMAC},
		"the machine again":                      {peer: clientIP, senders: []frame.MAC{clientMAC, clientMAC}, answer: clientMAC},
		"a copy":                                 {peer: clientIP, senders: []frame.MAC{clientMAC, copier}, want: TransactionTaken, answer: clientMAC},
		"a copy, private address":                {peer: private, senders: []frame.MAC{clientMAC, copier}, want: TransactionTaken, answer: clientMAC},
		"the machine after a copy":               {peer: clientIP, senders: []frame.MAC{copier, clientMAC}, answer: clientMAC},
		"a copy, and another after that":         {peer: clientIP, senders: []frame.MAC{copier, clientMAC, copier}, want: TransactionTaken, answer: clientMAC},
		"private address, nobody is waiting now": {peer: private, senders: []frame.MAC{copier, clientMAC}, later: expired, answer: clientMAC},
		"a machine that has changed its card":    {peer: private, senders: []frame.MAC{clientMAC, copier}, later: expired, answer: copier},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench6(t, nil)
			a := b.heard
			a.source.ip = test.peer
			now := int64(1)
			var wrapped dhcp6.Message
			for i, mac := range test.senders {
				last := i == len(test.senders)-1
				if a.mac = mac; last {
					now += test.later
				}
				got, drop := b.hearAt(message6(dhcp6.Solicit), &a, now)
				if last && drop != test.want || !last && drop != None {
					t.Fatalf("sender %d: got %v", i, drop)
				}
				if drop == None {
					wrapped = got
				}
			}
			o, drop := reply6(b.worker, answered(wrapped, dhcp6.Advertise), serverIP, b.targets, now)
			if drop != None || o.mac != test.answer {
				t.Errorf("the answer: got %v, to %x, want %x", drop, o.mac, test.answer)
			}
		})
	}
}
