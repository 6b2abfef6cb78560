package tftp

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/bootfile"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// bootFiles makes a volume with boot files below "boot", put there by hand.
func bootFiles(t testing.TB, files map[string][]byte) bootfile.Config {
	t.Helper()
	c := bootfile.Config{Directory: t.TempDir(), Path: "boot"}
	for name, data := range files {
		path := filepath.Join(c.Directory, c.Path, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// booting is a front with boot files that have been found, before a server that counts its requests.
func (l *lab) booting(t testing.TB, c Config, files map[string][]byte) (f *Front, asked *atomic.Int32) {
	t.Helper()
	asked = new(atomic.Int32)
	fs := &fileServer{
		files: map[string][]byte{"other": content(700), "f": content(10)}, onRequest: func() { asked.Add(1) },
	}
	fs.listen(t, l.server, serverIP+":69")
	c.Pick, c.Boot = to(serverIP+":69"), bootFiles(t, files)
	f = l.front(t, c)
	testwait.Until(t, "boot files are found", f.handler.files.Ready)
	return f, asked
}

func TestBootFilesAreServedAndOthersAsked(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	files := map[string][]byte{
		"empty": {}, "one": content(1), "short": content(511), "even": content(512), "long": content(513),
		"block": content(1468), "blocks": content(2 * 1468), "f": content(100_000), "EFI/BOOT/BOOTX64.EFI": content(5000),
	}
	f, asked := l.booting(t, Config{}, files)
	for file, want := range files {
		for _, options := range [][]string{
			nil,
			{"blksize", "1468", "tsize", "0"},
			{"blksize", "65464"},
			{"blksize", "1468", "windowsize", "4"},
			{"blksize", "1468", "windowsize", "64"},
			{"windowsize", "65535", "timeout", "2"},
		} {
			for _, at := range []string{proxyIP, "[" + proxy6 + "]"} {
				got, err := fetch{file: file, options: options}.run(l.client, at+":69")
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s %v of %s: got %d bytes, %v", file, options, at, len(got), err)
				}
			}
		}
	}
	if got, err := (fetch{file: `\efi\boot\bootx64.efi`}).run(l.client, proxyIP+":69"); err != nil || len(got) != 5000 {
		t.Errorf("as firmware writes it: got %d bytes, %v", len(got), err)
	}
	if got := asked.Load(); got != 0 {
		t.Errorf("the server was asked %d times", got)
	}
	if got, err := (fetch{file: "other"}).run(l.client, proxyIP+":69"); err != nil || !bytes.Equal(got, content(700)) {
		t.Errorf("a file of the server's: got %d bytes, %v", len(got), err)
	}
	_, err := fetch{file: "boot/f"}.run(l.client, proxyIP+":69")
	if err == nil || !strings.Contains(err.Error(), "ERROR 1") {
		t.Errorf("a file that is nowhere: %v, want the server's ERROR 1", err)
	}
	if got := f.drops(DropMalformed) + f.drops(DropNoSession) + f.drops(DropNotReady); got != 0 {
		t.Errorf("%d datagrams of honest peers dropped", got)
	}
}

func TestBootFilesRefuse(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	f, asked := l.booting(t, Config{}, map[string][]byte{"f": content(10)})
	for _, tt := range []struct {
		name, request, want string
		drop                Drop
	}{
		{"a write", "\x00\x02f\x00octet\x00", "\x00\x05\x00\x02writes are not allowed here\x00", DropWriteRefused},
		{"netascii", "\x00\x01f\x00NetASCII\x00", "\x00\x05\x00\x04ask for this file in mode octet (binary)\x00", DropMode},
		{"mail", "\x00\x01f\x00mail\x00", "\x00\x05\x00\x04ask for this file in mode octet (binary)\x00", DropMode},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := l.udp(t)
			defer conn.Close()
			if got := exchange(t, conn, []byte(tt.request), proxyIP+":69"); string(got) != tt.want {
				t.Errorf("got %q", got)
			}
			if f.drops(tt.drop) == 0 {
				t.Errorf("not counted as %s", drops.Name(tt.drop))
			}
		})
	}
	if got := asked.Load(); got != 0 {
		t.Errorf("the server was asked %d times", got)
	}
}

// Firmware asks for the size, ends that transfer with an ERROR, and reads from the next port.
func TestBootFileSizeProbe(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	f, _ := l.booting(t, Config{}, map[string][]byte{"f": content(3000)})
	conn := l.udp(t)
	defer conn.Close()
	got := exchange(t, conn, rrq("f", "tsize", "0", "blksize", "1468"), proxyIP+":69")
	if want := "\x00\x06tsize\x003000\x00blksize\x001468\x00"; string(got) != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	abort := append([]byte{0, opError, 0, 8}, "User aborted the transfer\x00"...)
	if _, err := conn.WriteToUDPAddrPort(abort, netip.MustParseAddrPort(proxyIP+":69")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "probe ended", func() bool { return f.outcomes(EndingClientError) == 1 })
	if got, err := (fetch{file: "f", local: conn}).run(l.client, proxyIP+":69"); err != nil || len(got) != 3000 {
		t.Errorf("from the same port: got %d bytes, %v", len(got), err)
	}
}

// A transfer goes on with the file as it was when it began.
func TestBootFilesThatChange(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	f, _ := l.booting(t, Config{}, map[string][]byte{"f": content(3000)})
	path := filepath.Join(f.handler.config.Boot.Directory, "boot", "f")
	conn := l.udp(t)
	defer conn.Close()
	exchange(t, conn, rrq("f"), proxyIP+":69")
	newer := bytes.Repeat([]byte("newer"), 1000)
	if err := os.WriteFile(path+".new", newer, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	got := content(3000)[:512]
	for n := byte(1); n < 6; n++ {
		b := exchange(t, conn, []byte{0, opAck, 0, n}, proxyIP+":69")
		got = append(got, b[4:]...)
	}
	if !bytes.Equal(got, content(3000)) {
		t.Errorf("the transfer that had begun got %d bytes that differ", len(got))
	}
	testwait.Until(t, "the new file is found", func() bool {
		file := f.handler.files.Find("f")
		defer file.Close()
		return file.Size() == int64(len(newer))
	})
	if got, err := (fetch{file: "f"}).run(l.client, proxyIP+":69"); err != nil || !bytes.Equal(got, newer) {
		t.Errorf("the next transfer got %d bytes, %v", len(got), err)
	}
}

// A file that becomes shorter while it is sent ends in an ERROR, never in a short block, which would be its end.
func TestBootFileThatIsShortened(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	f, _ := l.booting(t, Config{}, map[string][]byte{"f": content(200 << 10)})
	conn := l.udp(t)
	defer conn.Close()
	exchange(t, conn, rrq("f"), proxyIP+":69")
	if err := os.Truncate(filepath.Join(f.handler.config.Boot.Directory, "boot", "f"), 700); err != nil {
		t.Fatal(err)
	}
	b := exchange(t, conn, []byte{0, opAck, 0, 1}, proxyIP+":69")
	if want := "\x00\x05\x00\x00failed to read the file\x00"; string(b) != want {
		t.Errorf("got %q, want %q", b, want)
	}
}

// While boot files are awaited, what the server does not have may be one of them: firmware takes an ERROR for final.
func TestNoErrorsBeforeBootFilesAreThere(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	(&fileServer{files: map[string][]byte{"other": content(700)}}).listen(t, l.server, serverIP+":69")
	boot := bootFiles(t, map[string][]byte{"f": content(10)})
	there := boot.Directory + "/boot"
	if err := os.Rename(there, there+"-later"); err != nil {
		t.Fatal(err)
	}
	f := l.front(t, Config{Pick: to(serverIP + ":69"), Boot: boot})
	if got, err := (fetch{file: "other"}).run(l.client, proxyIP+":69"); err != nil || len(got) != 700 {
		t.Errorf("a file of the server's: got %d bytes, %v", len(got), err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		if got, err := (fetch{file: "f", tries: 100}).run(l.client, proxyIP+":69"); err != nil || len(got) != 10 {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
	})
	testwait.Until(t, "the server's ERROR is dropped", func() bool { return f.drops(DropNotReady) > 0 })
	if err := os.Rename(there+"-later", there); err != nil {
		t.Fatal(err)
	}
	running.Wait()
}

func TestBootFilesWithLoss(t *testing.T) {
	t.Parallel()
	clients := 100
	if testing.Short() {
		clients = 30
	}
	l := newLab(t)
	want := content(300_000)
	f, asked := l.booting(t, Config{MaxSessionsPerClient: 2 * clients}, map[string][]byte{"big": want})
	lose := lossy(100)
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			c := fetch{file: "big", lose: lose, tries: 50, options: []string{"blksize", "1468"}}
			if i%2 == 0 {
				c.options = append(c.options, "windowsize", "8")
			}
			got, err := c.run(l.client, proxyIP+":69")
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
		})
	}
	running.Wait()
	if got := asked.Load(); got != 0 {
		t.Errorf("the server was asked %d times", got)
	}
	testwait.Until(t, "sessions gone", func() bool { return f.outcomes(EndingCompleted) == clients })
}

// Requests of invented addresses get a few small answers and no window, and their sessions make room.
func TestBootFilesAreNoAmplifier(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	f, _ := l.booting(t, Config{}, map[string][]byte{"f": content(1 << 20)})
	conn := l.udp(t)
	defer conn.Close()
	request := rrq("f", "blksize", "1468", "windowsize", "64")
	received, datagrams := len(exchange(t, conn, request, proxyIP+":69")), 1
	_ = conn.SetReadDeadline(time.Now().Add(4 * time.Second))
	for {
		n, err := conn.Read(make([]byte, 2000))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		received += n
		datagrams++
	}
	if datagrams > 4 || received > 4*len(request) {
		t.Errorf("%d datagrams of %d bytes for a request of %d", datagrams, received, len(request))
	}
	if n := f.handler.meters; counter(n.drops[datagram.DropTableFull]) != 0 {
		t.Error("table full")
	}
}

// Invented addresses of a machine's network make us send a bounded number of answers, and cost the machine a second
// request.
func TestBootFilesUnansweredAreBounded(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	f, _ := l.booting(t, Config{}, map[string][]byte{"f": content(5000)})
	forge := l.raw(t)
	asked := netip.MustParseAddrPort(proxyIP + ":69")
	for i := range 2 * mostUnanswered {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i%100)}), uint16(2000+i))
		forge.send(t, from, asked, rrq("f"))
	}
	testwait.Until(t, "refused", func() bool { return f.drops(DropUnanswered) > 0 })
	if got := f.Sessions(); got > mostUnanswered {
		t.Errorf("%d transfers for invented addresses, want %d at most", got, mostUnanswered)
	}
	if got, err := (fetch{file: "f"}).run(l.client, proxyIP+":69"); err != nil || len(got) != 5000 {
		t.Errorf("a machine of the network got %d bytes, %v", len(got), err)
	}
	if got, err := (fetch{file: "f"}).run(l.client, "["+proxy6+"]:69"); err != nil || len(got) != 5000 {
		t.Errorf("a machine of another network got %d bytes, %v", len(got), err)
	}
}

// Descriptors and sessions come back, however transfers end.
func TestBootFilesAreClosed(t *testing.T) {
	l := newLab(t)
	f, _ := l.booting(t, Config{Idle: 300 * time.Millisecond}, map[string][]byte{"f": content(100_000)})
	before := descriptors(t)
	var conns []*net.UDPConn
	for range 20 {
		conn := l.udp(t)
		exchange(t, conn, rrq("f", "blksize", "1468"), proxyIP+":69")
		conns = append(conns, conn)
	}
	if got, most := descriptors(t), before+len(conns)+5; got > most {
		t.Errorf("%d descriptors for %d transfers, want %d at most", got, len(conns), most)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	testwait.Until(t, "all closed", func() bool { return f.Sessions() == 0 && descriptors(t) <= before })
	if got := f.outcomes(EndingTimeout); got != len(conns) {
		t.Errorf("%d timeouts, want %d", got, len(conns))
	}
}
