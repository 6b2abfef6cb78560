package netboot

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

const hookScript = `#!ipxe

echo Loading
set arch x86_64
set download-url http://192.0.2.2:8080
set kernel vmlinuz-${arch}
set retries:int32 0
:retry_kernel
kernel ${download-url}/${kernel} loglevel=4 \
syslog_host=192.0.2.2 worker_id=w && goto next || iseq ${idx} ${retries} && goto kernel-error
initrd ${download-url}/initramfs-${arch} && goto boot || sleep 1
:kernel-error
exit
`

func TestParseScript(t *testing.T) {
	got, err := ParseScript(hookScript)
	if err != nil {
		t.Fatal(err)
	}
	want := Script{
		Kernel: "http://192.0.2.2:8080/vmlinuz-x86_64",
		Args:   "loglevel=4 syslog_host=192.0.2.2 worker_id=w",
		Initrd: "http://192.0.2.2:8080/initramfs-x86_64",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{"", "<html>", "#!ipxe\nexit\n", "#!ipxe\nkernel ${a\ninitrd b\n"} {
		if _, err := ParseScript(text); err == nil {
			t.Errorf("%q is taken for a script", text)
		}
	}
}

func FuzzParseScript(f *testing.F) {
	f.Add(hookScript)
	f.Add("#!ipxe\nset a ${a}${a}\nkernel ${a} \\\ninitrd")
	f.Add("#!ipxe\nkernel x && y\ninitrd z || ${")
	f.Fuzz(func(t *testing.T, text string) {
		script, err := ParseScript(text)
		if err == nil && (script.Kernel == "" || strings.ContainsAny(script.Kernel+script.Initrd, " \n")) {
			t.Errorf("got %+v", script)
		}
	})
}

var (
	ownMAC = net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}
	xid    = dhcpv4.TransactionID{1, 2, 3, 4}
)

// reply builds an OFFER as a relay sends it.
func reply(tb testing.TB) []byte {
	tb.Helper()
	offer, err := dhcpv4.New(
		dhcpv4.WithTransactionID(xid), dhcpv4.WithHwAddr(ownMAC), dhcpv4.WithYourIP(net.IPv4(192, 0, 2, 101)),
		dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer), dhcpv4.WithServerIP(net.IPv4(192, 0, 2, 2)),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithRouter(net.IPv4(192, 0, 2, 1)),
		dhcpv4.WithOption(dhcpv4.OptHostName("m1")), dhcpv4.WithOption(dhcpv4.OptBootFileName("snp.efi")),
	)
	if err != nil {
		tb.Fatal(err)
	}
	offer.OpCode = dhcpv4.OpcodeBootReply
	frame := discoverFrame(ownMAC, offer.ToBytes())
	copy(frame, ownMAC)
	ip, udp := frame[14:34], frame[34:]
	copy(ip[12:], []byte{192, 0, 2, 2, 192, 0, 2, 101})
	binary.BigEndian.PutUint16(udp, serverPort)
	binary.BigEndian.PutUint16(udp[2:], clientPort)
	finish(frame)
	return frame
}

// finish sets both checksums.
func finish(frame []byte) {
	ip, udp := frame[14:34], frame[34:]
	copy(ip[10:12], []byte{0, 0})
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip, 0))
	copy(udp[6:8], []byte{0, 0})
	binary.BigEndian.PutUint16(udp[6:], ^udpSum(ip, udp))
}

func TestParseReply(t *testing.T) {
	answer, err := parseReply(reply(t), ownMAC, xid)
	if err != nil || answer == nil {
		t.Fatalf("a good reply is not taken: %v, %v", answer, err)
	}
	lease, err := leaseOf(answer)
	if err != nil {
		t.Fatal(err)
	}
	if lease.Addr.String() != "192.0.2.101/24" || lease.Gateway.String() != "192.0.2.1" || lease.BootFile != "snp.efi" ||
		lease.Next.String() != "192.0.2.2" || lease.Hostname != "m1" {
		t.Errorf("got lease %+v", lease)
	}
	for _, test := range []struct {
		name   string
		change func(frame []byte) []byte
		fault  string // part of the error; empty: silently ignored
	}{
		{"to another machine", func(f []byte) []byte { f[5] = 9; return f }, ""},
		{"IPv6", func(f []byte) []byte { f[12] = 0x86; return f }, ""},
		{"another transaction", func(f []byte) []byte { f[14+20+8+4] = 9; finish(f); return f }, ""},
		{"cut", func(f []byte) []byte { return f[:100] }, ""},
		{"a request", func(f []byte) []byte { f[14+20+8] = 1; finish(f); return f }, ""},
		{"from another port", func(f []byte) []byte { f[34] = 4; finish(f); return f }, "came from port"},
		{"wrong IP checksum", func(f []byte) []byte { f[24]++; return f }, "wrong IP checksum"},
		{"wrong UDP checksum", func(f []byte) []byte { f[len(f)-1]++; return f }, "wrong UDP checksum"},
		{"wrong UDP length", func(f []byte) []byte { f[39]--; finish(f); return f }, "UDP length"},
		{"to an address nobody has", func(f []byte) []byte { f[33] = 99; finish(f); return f }, "sent to 192.0.2.99"},
		{"to 0.0.0.0", func(f []byte) []byte { copy(f[30:34], make([]byte, 4)); finish(f); return f }, "sent to 0.0.0.0"},
		{"chaddr", func(f []byte) []byte { f[14+20+8+28] = 9; finish(f); return f }, "chaddr is"},
	} {
		answer, err := parseReply(test.change(reply(t)), ownMAC, xid)
		switch {
		case answer != nil:
			t.Errorf("%s: taken", test.name)
		case test.fault == "" && err != nil, test.fault != "" && err == nil:
			t.Errorf("%s: got error %v", test.name, err)
		case err != nil && !strings.Contains(err.Error(), test.fault):
			t.Errorf("%s: got error %v, want %q", test.name, err, test.fault)
		}
	}
	broadcast := reply(t)
	copy(broadcast, broadcastMAC)
	copy(broadcast[30:34], net.IPv4bcast.To4())
	finish(broadcast)
	if answer, err := parseReply(broadcast, ownMAC, xid); answer == nil {
		t.Errorf("a broadcast reply is not taken: %v", err)
	}
}

func FuzzParseReply(f *testing.F) {
	f.Add(reply(f))
	f.Add(reply(f)[:60])
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if answer, err := parseReply(frame, ownMAC, xid); answer != nil && err != nil {
			t.Error("taken and refused")
		}
	})
}

func TestAsk(t *testing.T) {
	for _, test := range []struct {
		ask               Ask
		class, user       string
		arch, uuid, flags bool
	}{
		{Ask{Stage: PXE, Arch: iana.EFI_X86_64, Broadcast: true}, "PXEClient:Arch:00007:UNDI:002001", "", true, true, true},
		{Ask{Stage: IPXE}, "PXEClient:Arch:00000:UNDI:002001", "Tinkerbell", true, true, false},
		{Ask{Stage: System}, "", "", false, false, false},
	} {
		message, err := dhcpv4.NewDiscovery(ownMAC, test.ask.modifiers()...)
		if err != nil {
			t.Fatal(err)
		}
		if got := message.ClassIdentifier(); got != test.class {
			t.Errorf("%v: option 60 is %q, want %q", test.ask, got, test.class)
		}
		if got := string(message.Options.Get(dhcpv4.OptionUserClassInformation)); got != test.user {
			t.Errorf("%v: option 77 is %q, want %q", test.ask, got, test.user)
		}
		for code, want := range map[dhcpv4.OptionCode]bool{
			dhcpv4.OptionClientSystemArchitectureType: test.arch, dhcpv4.OptionClientMachineIdentifier: test.uuid,
		} {
			if got := message.Options.Has(code); got != want {
				t.Errorf("%v: option %v: %v, want %v", test.ask, code, got, want)
			}
		}
		if message.IsBroadcast() != test.flags {
			t.Errorf("%v: broadcast flag is %v", test.ask, message.IsBroadcast())
		}
	}
}

// server plays a TFTP server on one end of a pipe of datagrams: it gets each datagram of the client and answers.
func server(t *testing.T, answer func(got []byte) [][]byte) net.Conn {
	t.Helper()
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 2048)
		for {
			n, from, err := socket.ReadFromUDP(buffer)
			if err != nil {
				return
			}
			for _, datagram := range answer(buffer[:n]) {
				_, _ = socket.WriteToUDP(datagram, from)
			}
		}
	}()
	conn, err := net.Dial("udp4", socket.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = socket.Close()
		<-done
	})
	return conn
}

func block(number uint16, size int) []byte {
	return append([]byte{0, opData, byte(number >> 8), byte(number)}, make([]byte, size)...)
}

func TestReadFile(t *testing.T) {
	whole := func(got []byte) [][]byte {
		switch {
		case got[1] == opRead:
			return [][]byte{[]byte("\x00\x06blksize\x00100\x00tsize\x00150\x00")}
		case got[3] == 0:
			return [][]byte{block(1, 100), block(1, 100)} // the second again
		case got[3] == 1:
			return [][]byte{block(2, 50)}
		}
		return nil
	}
	for _, test := range []struct {
		name   string
		answer func([]byte) [][]byte
		size   int
		fault  string
	}{
		{"with options", whole, 150, ""},
		{"without options", func(got []byte) [][]byte {
			if got[1] == opRead {
				return [][]byte{block(1, 512)}
			}
			return [][]byte{block(2, 0)}
		}, 512, ""},
		{"error", func([]byte) [][]byte { return [][]byte{[]byte("\x00\x05\x00\x01no such file\x00")} }, 0, "no such file"},
		{"larger block than agreed", func([]byte) [][]byte { return [][]byte{block(1, 513)} }, 0, "agreed were 512"},
		{"larger block than asked for", func([]byte) [][]byte {
			return [][]byte{[]byte("\x00\x06blksize\x009000\x00")}
		}, 0, "asked was for"},
		{"an option nobody asked for", func([]byte) [][]byte {
			return [][]byte{[]byte("\x00\x06windowsize\x004\x00")}
		}, 0, "was not asked for"},
		{"shorter than announced", func(got []byte) [][]byte {
			if got[1] == opRead {
				return [][]byte{[]byte("\x00\x06tsize\x00150\x00")}
			}
			return [][]byte{block(1, 10)}
		}, 0, "announced 150"},
		{"silence", func([]byte) [][]byte { return nil }, 0, "no answer"},
		{"a short datagram", func([]byte) [][]byte { return [][]byte{{0}} }, 0, "got 1 bytes"},
		{"another opcode", func([]byte) [][]byte { return [][]byte{{0, 9, 0, 0}} }, 0, "opcode 9"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		content, err := ReadFile(ctx, server(t, test.answer), "f")
		cancel()
		switch {
		case test.fault == "" && (err != nil || len(content) != test.size):
			t.Errorf("%s: got %d bytes, %v", test.name, len(content), err)
		case test.fault != "" && (err == nil || !strings.Contains(err.Error(), test.fault)):
			t.Errorf("%s: got error %v, want %q", test.name, err, test.fault)
		}
	}
}

func FuzzReceive(f *testing.F) {
	f.Add(block(1, 3))
	f.Add([]byte("\x00\x06blksize\x00100\x00tsize\x00150\x00"))
	f.Add([]byte("\x00\x05\x00\x01no such file"))
	f.Fuzz(func(t *testing.T, b []byte) {
		transfer := transfer{size: 512, total: -1, data: func([]byte) error { return nil }}
		if done, err := transfer.receive(b); done && err != nil {
			t.Error("done and failed")
		}
		if transfer.got > 512 {
			t.Error("took more than a block")
		}
	})
}
