package datagram

import "testing"

// A socket of AddOnce is reported once, whatever comes meanwhile, and after Again at once if something waits.
func TestAddOnce(t *testing.T) {
	socket, ns := loopback(t, "127.0.0.1:0")
	s := socket
	p, err := NewPoller(4)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	token := Token{ID: 3}
	if err := p.AddOnce(s, token); err != nil {
		t.Fatal(err)
	}
	client := dial(t, ns, s.Local().String())
	reports := func() (n int) {
		t.Helper()
		p.Wake() // so that Wait returns where the socket is silent
		if err := p.Wait(-1, func(e Event) {
			if e.Token != token {
				t.Errorf("got %v", e.Token)
			}
			n++
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i, want := range []int{1, 0, 0} {
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if got := reports(); got != want {
			t.Errorf("datagram %d: %d reports, want %d", i, got, want)
		}
	}
	for range 2 {
		if err := p.Again(s, token); err != nil {
			t.Fatal(err)
		}
		if got := reports(); got != 1 {
			t.Errorf("%d reports after Again, want 1: nothing has been read", got)
		}
	}
}
