package tftp

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/shaper"
)

// With windows that wait 450 ms for the rate, while server and client repeat after 300, each once a window and far from its
// end, whenever a busy machine lets them: each transfer takes its time, nothing is lost, and hardly anything is sent twice.
func TestWindowsWaitForTheRate(t *testing.T) {
	l := newLab(t)
	data := content(40_000)
	(&fileServer{files: map[string][]byte{"f": data}, retry: 3 * retryAfter}).listen(t, l.server, serverIP+":69")
	const bits = 73e3
	for name, options := range map[string][]string{
		"windows":  {"blksize", "1024", "windowsize", "4"},
		"lockstep": {"blksize", "4000"},
		"plainest": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := &shaper.Shaper{}
			s.SetRate(bits)
			f := l.front(t, Config{Pick: to(serverIP + ":69"), Shaper: s})
			begun := time.Now()
			c := fetch{file: "f", options: options}
			got, err := c.run(l.client, proxyIP+":69")
			took := time.Since(begun)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("got %d bytes, %v", len(got), err)
			}
			// What is allowed at first, and what the last window is not filled with, comes on top.
			if least := time.Duration(float64(len(got)) * 8 / bits * .8 * float64(time.Second)); took < least {
				t.Errorf("took %v, which is less than %v", took, least)
			}
			testwait.Until(t, "the transfer completed", func() bool { return f.outcomes(EndingCompleted) == 1 })
			if options != nil && f.drops(DropWhileWaiting) == 0 {
				t.Error("nothing was repeated while a window waited")
			}
			if n := counter(f.handler.meters.retransmits); n > 2 {
				t.Errorf("%v blocks were sent twice", n)
			}
		})
	}
}

// A transfer that waits follows a rate that goes, and one that ends while it waits leaves nothing behind.
func TestRateGoesWhileAWindowWaits(t *testing.T) {
	l := newLab(t)
	data := content(40_000)
	(&fileServer{files: map[string][]byte{"f": data}}).listen(t, l.server, serverIP+":69")
	s := &shaper.Shaper{}
	s.SetRate(1)
	f := l.front(t, Config{Pick: to(serverIP + ":69"), Shaper: s, Idle: time.Second})
	conn := l.udp(t) // asks, takes the first block, and goes
	exchange(t, conn, rrq("f"), proxyIP+":69")
	if _, err := conn.WriteToUDPAddrPort([]byte{0, opAck, 0, 1}, l.at(69)); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	done := make(chan error, 1)
	go func() {
		got, err := fetch{file: "f", options: []string{"blksize", "1024"}, tries: 100}.run(l.client, proxyIP+":69")
		if err == nil && !bytes.Equal(got, data) {
			t.Errorf("got %d bytes that differ", len(got))
		}
		done <- err
	}()
	testwait.Until(t, "the one that has gone is forgotten", func() bool { return f.Sessions() == 1 })
	testwait.Until(t, "the other one is held", func() bool { return f.drops(DropWhileWaiting) > 3 })
	s.SetRate(0)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// sent is how many bytes the only route of a group has been granted.
func sent(t *testing.T, group *shaper.Group) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(group)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if strings.HasSuffix(family.GetName(), "_bytes_total") {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("no counter of bytes")
	return 0
}
