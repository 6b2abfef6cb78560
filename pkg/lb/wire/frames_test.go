package wire

import (
	"bytes"
	"net"
	"testing"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/consent"
)

func openFrames(t *testing.T, ns *nstest.NS) (frames *Frames) {
	t.Helper()
	ns.Do(t, func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		frames, err = OpenFrames(link, consent.EtherType)
		return err
	})
	t.Cleanup(func() { _ = frames.Close() })
	return frames
}

// A frame to all comes to the others alone, one to a station to that alone, short ones and long ones; and Close ends
// Receive.
func TestFrames(t *testing.T) {
	hosts := network(t, 3)
	a, b, c := openFrames(t, hosts[0]), openFrames(t, hosts[1]), openFrames(t, hosts[2])
	hear := func(f *Frames, from frame.MAC, want []byte) {
		t.Helper()
		mac, got, err := f.Receive()
		if err != nil || mac != from || !bytes.HasPrefix(got, want) {
			t.Errorf("heard %x from %x, %v, want %x from %x", got, mac, err, want, from)
		}
	}
	for _, payload := range [][]byte{[]byte("short"), bytes.Repeat([]byte("long"), consent.MaxLen/4)} {
		if err := a.Send(frame.Broadcast, payload); err != nil {
			t.Fatal(err)
		}
		hear(b, a.mac, payload)
		hear(c, a.mac, payload)
	}
	if err := b.Send(a.mac, []byte("answer")); err != nil {
		t.Fatal(err)
	}
	hear(a, b.mac, []byte("answer")) // and not what it has sent itself
	ended := make(chan error)
	go func() {
		_, _, err := c.Receive()
		ended <- err
	}()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("Receive goes on after Close")
	}
}
