package tftp

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTransfers(t *testing.T) {
	l := newLab(t)
	files := map[string][]byte{"empty": {}, "small": content(100), "even": content(1024), "big": content(300_000)}
	(&fileServer{files: files}).listen(t, l.server, serverIP+":69")
	(&fileServer{files: files, singlePort: true}).listen(t, l.server, "198.51.100.3:69")
	(&fileServer{files: files}).listen(t, l.server, "["+server6+"]:69")

	for _, tt := range []struct {
		name, endpoint, ask string
	}{
		{"new port", serverIP + ":69", proxyIP + ":69"},
		{"single port", "198.51.100.3:69", proxyIP + ":69"},
		{"IPv6", "[" + server6 + "]:69", "[" + proxy6 + "]:69"},
		{"IPv6 to IPv4", serverIP + ":69", "[" + proxy6 + "]:69"},
		{"IPv4 to IPv6", "[" + server6 + "]:69", proxyIP + ":69"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := l.front(t, Config{Pick: to(tt.endpoint), DrainTimeout: time.Second})
			for _, c := range []fetch{
				{file: "empty"},
				{file: "small"},
				{file: "even"},
				{file: "big", options: []string{"blksize", "1468", "tsize", "0"}},
				{file: "big", options: []string{"blksize", "65464"}},
				{file: "big", options: []string{"blksize", "1468", "windowsize", "16"}},
			} {
				got, err := c.run(l.client, tt.ask)
				if err != nil {
					t.Errorf("%s %v: %v", c.file, c.options, err)
				} else if !bytes.Equal(got, files[c.file]) {
					t.Errorf("%s %v: got %d bytes that differ", c.file, c.options, len(got))
				}
			}
			testwait.Until(t, "six transfers completed", func() bool { return f.outcomes(EndingCompleted) == 6 })
		})
	}
}

func (f *Front) outcomes(e Ending) int {
	m := f.handler.meters
	return int(counter(m.transfers[e]))
}

// A machine without an address of its own asks by link-local addresses, which mean nothing without an interface.
func TestLinkLocal(t *testing.T) {
	l := newLab(t)
	l.client.Addr(t, "c0", "fe80::1/64")
	l.proxy.Addr(t, "p0", "fe80::2/64")
	fs := &fileServer{files: map[string][]byte{"f": content(2000)}}
	fs.listen(t, l.server, serverIP+":69")
	l.front(t, Config{Pick: to(serverIP + ":69")})
	ask := fmt.Sprintf("[fe80::2%%%d]:69", l.client.Link(t, "c0").Attrs().Index)
	got, err := fetch{file: "f"}.run(l.client, ask)
	if err != nil || !bytes.Equal(got, fs.files["f"]) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

// A machine that asks a second address with the port of its first request hears from the second.
func TestSecondAddressAsked(t *testing.T) {
	l := newLab(t)
	(&fileServer{files: map[string][]byte{"f": content(10)}}).listen(t, l.server, serverIP+":69")
	l.front(t, Config{Pick: to(serverIP + ":69")})
	conn := l.udp(t)
	defer conn.Close()
	for _, at := range []string{proxyIP + ":69", "192.0.2.200:69"} {
		if _, err := conn.WriteToUDPAddrPort(rrq("f"), netip.MustParseAddrPort(at)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		for { // the server repeats what is not acknowledged
			_, from, err := conn.ReadFromUDPAddrPort(make([]byte, 600))
			if err != nil {
				t.Fatalf("no answer from %s: %v", at, err)
			}
			if plain(from) == netip.MustParseAddrPort(at) {
				break
			}
		}
	}
}

func TestErrorPasses(t *testing.T) {
	l := newLab(t)
	(&fileServer{}).listen(t, l.server, serverIP+":69")
	var logged bytes.Buffer
	f := l.front(t, Config{
		Pick:   to(serverIP + ":69"),
		Idle:   300 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	_, err := fetch{file: "pxelinux.0"}.run(l.client, proxyIP+":69")
	if err == nil || !strings.Contains(err.Error(), `ERROR 1 "file not found"`) {
		t.Errorf("got error %v, want ERROR 1 of the server", err)
	}
	testwait.Until(t, "session gone", func() bool { return f.Sessions() == 0 && f.outcomes(EndingServerError) == 1 })
}

func TestWriteRefused(t *testing.T) {
	l := newLab(t)
	f := l.front(t, Config{Pick: to(serverIP + ":69")})
	conn := l.udp(t)
	defer conn.Close()
	b := rrq("x")
	b[1] = opWrite
	got := exchange(t, conn, b, proxyIP+":69")
	if !bytes.Equal(got, writeError) {
		t.Errorf("got %q, want ERROR 2", got)
	}
	if f.Sessions() != 0 {
		t.Error("a refused write left a session")
	}
}

func TestUpdate(t *testing.T) {
	l := newLab(t)
	l.silentServer(t, serverIP+":69")
	c := Config{Pick: to(serverIP + ":69"), MaxSessionsPerClient: 1}
	f := l.front(t, c)
	front := netip.MustParseAddrPort(proxyIP + ":69")
	for range 2 {
		conn := l.udp(t)
		defer conn.Close()
		if _, err := conn.WriteToUDPAddrPort(rrq("f"), front); err != nil {
			t.Fatal(err)
		}
	}
	testwait.Until(t, "the second refused", func() bool { return f.drops(datagram.DropClientLimit) == 1 && f.Sessions() == 1 })
	c.MaxSessionsPerClient = 2
	f.Update(c)
	conn := l.udp(t)
	defer conn.Close()
	if _, err := conn.WriteToUDPAddrPort(rrq("f"), front); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "room for another", func() bool { return f.Sessions() == 2 })
	c.Idle = 10 * time.Millisecond
	f.Update(c)
	testwait.Until(t, "both given up", func() bool { return f.Sessions() == 0 && f.outcomes(EndingNoAnswer) == 2 })
}

func TestRepeatedRequest(t *testing.T) {
	l := newLab(t)
	var requests atomic.Int32
	fs := &fileServer{files: map[string][]byte{"f": content(2000)}, onRequest: func() { requests.Add(1) }}
	fs.listen(t, l.server, serverIP+":69")
	f := l.front(t, Config{Pick: to(serverIP + ":69")})
	conn := l.udp(t)
	defer conn.Close()

	first := exchange(t, conn, rrq("f"), proxyIP+":69")
	again := exchange(t, conn, rrq("f"), proxyIP+":69")
	if !bytes.Equal(first, again) {
		t.Errorf("got %d bytes, then %d: want the same block", len(first), len(again))
	}
	if f.Sessions() != 1 {
		t.Errorf("got %d sessions, want the one", f.Sessions())
	}
	if got := requests.Load(); got != 1 {
		t.Errorf("the server saw %d requests, want 1", got)
	}

	// A client that restarts on its port after the first block begins anew.
	if b := exchange(t, conn, []byte{0, opAck, 0, 1}, proxyIP+":69"); b[3] != 2 && b[3] != 1 {
		t.Fatalf("got block %d, want 2", b[3])
	}
	got, err := fetch{file: "f", local: conn}.run(l.client, proxyIP+":69")
	if err != nil || !bytes.Equal(got, fs.files["f"]) {
		t.Errorf("restart on the same port: %d bytes, %v", len(got), err)
	}
	testwait.Until(t, "a replaced and a completed transfer", func() bool {
		return f.outcomes(EndingReplaced) == 1 && f.Sessions() == 1
	})
}

// Firmware asks for the size, breaks off at the answer, and asks again from the same port for the file itself.
func TestSizeProbe(t *testing.T) {
	for _, singlePort := range []bool{false, true} {
		l := newLab(t)
		fs := &fileServer{files: map[string][]byte{"f": content(3000)}, singlePort: singlePort}
		fs.listen(t, l.server, serverIP+":69")
		f := l.front(t, Config{Pick: to(serverIP + ":69")})
		conn := l.udp(t)
		defer conn.Close()
		oack := exchange(t, conn, rrq("f", "tsize", "0"), proxyIP+":69")
		if !bytes.HasPrefix(oack, []byte("\x00\x06tsize\x003000\x00")) {
			t.Fatalf("got %q, want an OACK with the size", oack)
		}
		abort := errorPacket(0, "only asking")
		if _, err := conn.WriteToUDPAddrPort(abort, netip.MustParseAddrPort(proxyIP+":69")); err != nil {
			t.Fatal(err)
		}
		got, err := fetch{file: "f", options: []string{"blksize", "1456"}, local: conn}.run(l.client, proxyIP+":69")
		if err != nil || !bytes.Equal(got, fs.files["f"]) {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
		testwait.Until(t, "a probe and a transfer", func() bool {
			return f.outcomes(EndingClientError) == 1 && f.outcomes(EndingCompleted) == 1
		})
	}
}

func TestStranger(t *testing.T) {
	l := newLab(t)
	var server, stranger *net.UDPConn
	l.server.Do(t, func() (err error) {
		if server, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(serverIP), Port: 69}); err != nil {
			return err
		}
		stranger, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP("198.51.100.3")})
		return err
	})
	defer server.Close()
	defer stranger.Close()
	f := l.front(t, Config{Pick: to(serverIP + ":69")})
	conn := l.udp(t)
	defer conn.Close()
	if _, err := conn.WriteToUDPAddrPort(rrq("f"), netip.MustParseAddrPort(proxyIP+":69")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1500)
	_, session, err := server.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	got := exchange(t, stranger, []byte("\x00\x03\x00\x01evil"), session.String())
	if !bytes.Equal(got, strangerError) {
		t.Errorf("the stranger got %q, want ERROR 5", got)
	}
	// An ERROR is not answered, and does not end the transfer.
	if _, err := stranger.WriteToUDPAddrPort(strangerError, session); err != nil {
		t.Fatal(err)
	}
	if _, err := server.WriteToUDPAddrPort([]byte{0, opData, 0, 1, 'o', 'k'}, session); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, from, err := conn.ReadFromUDPAddrPort(buf)
	if err != nil || string(buf[4:n]) != "ok" || from.String() != proxyIP+":69" {
		t.Errorf("the client got %q from %s, %v", buf[:n], from, err)
	}
	_ = stranger.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := stranger.Read(buf); err == nil {
		t.Errorf("the stranger's ERROR was answered: %q", buf[:n])
	}
	if got := f.drops(datagram.DropStranger); got != 2 {
		t.Errorf("got %d strangers, want 2", got)
	}
}

func TestDrops(t *testing.T) {
	l := newLab(t)
	l.silentServer(t, serverIP+":69")
	f := l.front(t, Config{Pick: to(serverIP + ":69"), MaxSessionsPerClient: 1})
	for _, tt := range []struct {
		data []byte
		want Drop
	}{
		{[]byte{}, DropMalformed},
		{[]byte{0}, DropMalformed},
		{[]byte{0, opRead}, DropMalformed},
		{[]byte("\x00\x01file"), DropMalformed},
		{[]byte("\x00\x01file\x00"), DropMalformed},
		{[]byte{0, opAck, 0, 1}, DropNoSession},
		{bytes.Repeat([]byte{0xff}, 65507), DropNoSession},
		{rrq("f"), datagram.NotDropped},
		{rrq("f"), datagram.DropClientLimit},
	} {
		conn := l.udp(t)
		before := 0
		if tt.want != datagram.NotDropped {
			before = f.drops(tt.want)
		}
		if _, err := conn.WriteToUDPAddrPort(tt.data, netip.MustParseAddrPort(proxyIP+":69")); err != nil {
			t.Fatal(err)
		}
		if tt.want == datagram.NotDropped {
			testwait.Until(t, "session", func() bool { return f.Sessions() == 1 })
		} else {
			testwait.Until(t, drops.Name(tt.want), func() bool { return f.drops(tt.want) == before+1 })
		}
		conn.Close()
	}
}

func TestLoopIsDropped(t *testing.T) {
	l := newLab(t)
	f := l.front(t, Config{Pick: to(proxyIP + ":69")})
	conn := l.udp(t)
	defer conn.Close()
	if _, err := conn.WriteToUDPAddrPort(rrq("f"), netip.MustParseAddrPort(proxyIP+":69")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "loop", func() bool { return f.drops(datagram.DropLoop) == 1 })
	if f.Sessions() != 1 {
		t.Errorf("got %d sessions, want 1", f.Sessions())
	}
}

func TestRefusedEndpointIsLeft(t *testing.T) {
	l := newLab(t)
	fs := &fileServer{files: map[string][]byte{"f": content(2000)}}
	fs.listen(t, l.server, serverIP+":69")
	var picks atomic.Int32
	f := l.front(t, Config{Pick: func(netip.Addr) (netip.AddrPort, error) {
		if picks.Add(1) == 1 {
			return netip.MustParseAddrPort("198.51.100.3:69"), nil // nobody there
		}
		return netip.MustParseAddrPort(serverIP + ":69"), nil
	}})
	got, err := fetch{file: "f"}.run(l.client, proxyIP+":69")
	if err != nil || !bytes.Equal(got, fs.files["f"]) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if f.outcomes(EndingUnreachable) != 1 {
		t.Error("the refusal was not counted")
	}
}

// An endpoint that swallows requests is left as well, though not at the first repetition: it may just be slow.
func TestSilentEndpointIsLeft(t *testing.T) {
	l := newLab(t)
	fs := &fileServer{files: map[string][]byte{"f": content(2000)}}
	fs.listen(t, l.server, serverIP+":69")
	l.silentServer(t, "198.51.100.3:69")
	var picks, silent atomic.Int32
	f := l.front(t, Config{
		Pick: func(netip.Addr) (netip.AddrPort, error) {
			if picks.Add(1) == 1 {
				return netip.MustParseAddrPort("198.51.100.3:69"), nil
			}
			return netip.MustParseAddrPort(serverIP + ":69"), nil
		},
		Report: func(at netip.AddrPort, err error) {
			if at.String() == "198.51.100.3:69" && errors.Is(err, datagram.ErrNoAnswer) {
				silent.Add(1)
			}
		},
		patience: 2 * 3 * retryAfter,
	})
	got, err := fetch{file: "f"}.run(l.client, proxyIP+":69")
	if err != nil || !bytes.Equal(got, fs.files["f"]) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if picks.Load() != 2 || silent.Load() != 1 {
		t.Errorf("picked %d times, reported silence %d times, want 2 and 1", picks.Load(), silent.Load())
	}
	testwait.Until(t, "completed", func() bool { return f.outcomes(EndingCompleted) == 1 })
}

func TestTakenPort(t *testing.T) {
	l := newLab(t)
	l.front(t, Config{Pick: to(serverIP + ":69")})
	err := l.proxy.Try(func() error {
		f, err := Listen(Config{
			Route:  "second",
			Listen: netip.AddrPortFrom(netip.Addr{}, 69),
			Pick:   to(serverIP + ":69"),
		})
		if err == nil {
			f.Close()
		}
		return err
	})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "port 69") {
		t.Errorf("got error %v, want one that names port 69", err)
	}
}

func TestDrainLetsTransferEnd(t *testing.T) {
	l := newLab(t)
	conn := l.udp(t)
	defer conn.Close()
	(&fileServer{files: map[string][]byte{"f": content(1000)}}).listen(t, l.server, serverIP+":69")
	stop, done := l.controlled(t, Config{Pick: to(serverIP + ":69"), DrainTimeout: 20 * time.Second})
	first := exchange(t, conn, rrq("f"), proxyIP+":69")
	if len(first) != 516 {
		t.Fatalf("got %d bytes, want a block", len(first))
	}
	stop()
	select {
	case err := <-done:
		t.Fatalf("Serve returned %v with a live transfer", err)
	case <-time.After(100 * time.Millisecond):
	}
	second := exchange(t, conn, []byte{0, opAck, 0, 1}, proxyIP+":69")
	for second[3] == 1 { // a retransmission crossed
		second = exchange(t, conn, nil, proxyIP+":69")
	}
	if len(second) != 4+1000-512 {
		t.Fatalf("got %d bytes, want the last block", len(second))
	}
	if _, err := conn.WriteToUDPAddrPort([]byte{0, opAck, 0, 2}, netip.MustParseAddrPort(proxyIP+":69")); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

func TestDrainIsBounded(t *testing.T) {
	l := newLab(t)
	conn := l.udp(t)
	defer conn.Close()
	(&fileServer{files: map[string][]byte{"f": content(1000)}}).listen(t, l.server, serverIP+":69")
	stop, done := l.controlled(t, Config{Pick: to(serverIP + ":69"), DrainTimeout: 50 * time.Millisecond})
	exchange(t, conn, rrq("f"), proxyIP+":69")
	stop()
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
}
