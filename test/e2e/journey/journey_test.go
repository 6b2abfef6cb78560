package journey_test

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/journey"
	"github.com/tinkerbell/stack/test/e2e/kernel"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/observe"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

// travel has one machine travel, and ends its lab.
func travel(t *testing.T, firmware string, change func(*journey.Options)) *journey.Journey {
	t.Helper()
	j := travelOnly(t, firmware, change)
	end(t, j)
	return j
}

// preparing is held while media are made: the first test fetches what the others find.
var preparing sync.Mutex

// prepare makes what a machine boots.
func prepare(t *testing.T, repo, firmware string) machine.Media {
	t.Helper()
	preparing.Lock()
	defer preparing.Unlock()
	cache := filepath.Join(repo, "build", "cache")
	var boots *kernel.Kernel
	directory := filepath.Join(cache, "media-go")
	if firmware != "go" {
		if missing := machine.Missing(); len(missing) > 0 {
			t.Skip("needs the Debian packages " + strings.Join(missing, ", "))
		}
		fetched, err := kernel.Fetch(t.Context(), filepath.Join(cache, "kernel"), kernel.Machine, t.Logf)
		if err != nil {
			t.Skipf("needs Debian's cloud kernel: %v", err)
		}
		boots, directory = &fetched, filepath.Join(cache, "media")
	}
	media, err := machine.PrepareMedia(t.Context(), filepath.Join(repo, "test", "e2e"), directory, boots)
	if err != nil {
		t.Fatal(err)
	}
	return media
}

// travelOnly has one machine travel; the caller ends its lab.
func travelOnly(t *testing.T, firmware string, change func(*journey.Options)) *journey.Journey {
	t.Helper()
	if err := lab.Preflight(); errors.Is(err, lab.ErrUnsupported) {
		t.Skip(err)
	}
	if testing.Short() {
		t.Skip("-short: it boots a machine")
	}
	repo, err := program.Repo()
	if err != nil {
		t.Fatal(err)
	}
	opts := journey.Options{
		Firmware: []string{firmware},
		Dir:      filepath.Join(repo, "build", "lab", "journey-"+strings.ReplaceAll(t.Name(), "/", "_")),
		Passed: func(name string, s journey.Step) {
			t.Logf("%6.2f s %s %-10s %v %s", s.Seconds, name, s.Name, s.OK, s.Detail)
		},
	}
	opts.Media = prepare(t, repo, firmware)
	if change != nil {
		change(&opts)
	}
	if err := os.MkdirAll(opts.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	j, err := journey.Run(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// TestGo takes the machine in Go through the classic services.
func TestGo(t *testing.T) {
	t.Parallel() // labs do not see each other
	j := travelWell(t, "go", func(*journey.Options) {})
	end(t, j)
	checkCapture(t, j)
}

// TestModernGo takes it through the modern Tinkerbell, and asks as the machine for all that the preset lets through and
// hides.
func TestModernGo(t *testing.T) {
	t.Parallel()
	asked := false
	j := travelWell(t, "go", func(opts *journey.Options) {
		modern(t, opts)
		servesMore(t, &opts.Lab)
		opts.Before = func(l *lab.Lab, what string) {
			if what == "install" { // the machine still has the address that iPXE got
				checkPreset(t, l, "host-go")
				checkISO(t, l, "host-go")
				checkTFTP(t, l, "host-go")
				asked = true
			}
		}
	})
	defer end(t, j)
	checkModern(t, j, len(hidden))
	if !asked {
		t.Error("the preset's paths were not looked at")
	}
}

// TestModernBIOS takes firmware through the modern Tinkerbell. [TestTwoRelays] takes it through the classic services.
func TestModernBIOS(t *testing.T) {
	t.Parallel()
	j := travelWell(t, "bios", func(opts *journey.Options) { modern(t, opts) })
	defer end(t, j)
	checkModern(t, j, 0)
}

// travelWell has a machine travel to the end, and wants the pod to have seen what the sniffer saw. The caller ends its lab.
func travelWell(t *testing.T, firmware string, change func(*journey.Options)) *journey.Journey {
	t.Helper()
	j := travelOnly(t, firmware, func(opts *journey.Options) {
		opts.Scale = 2 // CI may be slow
		change(opts)
	})
	if !j.Result.OK {
		end(t, j)
		t.Fatal(j.Result.Failure())
	}
	checkBoots(t, j)
	return j
}

func end(t *testing.T, j *journey.Journey) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// TestTwoRelays has firmware boot with a second relay on the VLAN, which is killed when the first OFFER is there.
func TestTwoRelays(t *testing.T) {
	t.Parallel() // labs do not see each other
	for _, firmware := range []string{"go", "bios"} {
		t.Run(firmware, func(t *testing.T) {
			t.Parallel()
			var site *lab.Lab
			var killed sync.Once
			j := travel(t, firmware, func(opts *journey.Options) {
				opts.Scale = 2
				opts.Ready = func(l *lab.Lab) error {
					site = l
					return l.AddRelay(t.Context())
				}
				opts.Passed = func(name string, s journey.Step) {
					t.Logf("%6.2f s %s %-10s %v %s", s.Seconds, name, s.Name, s.OK, s.Detail)
					if s.Name == journey.StepOffer {
						killed.Do(func() {
							if err := site.Kill(lab.SecondRelay); err != nil {
								t.Error(err)
							}
						})
					}
				}
			})
			if !j.Result.OK {
				t.Error(j.Result.Failure())
			}
		})
	}
}

// checkBoots wants of the pod what the sniffer saw: the machine, its steps in their order, and their times.
func checkBoots(t *testing.T, j *journey.Journey) {
	t.Helper()
	boots, err := j.Boots(t.Context())
	if err != nil {
		t.Error(err)
		return
	}
	var table strings.Builder
	if err := journey.WriteBoots(&table, boots); err != nil {
		t.Error(err)
		return
	}
	t.Logf("\n%s", table.String())
	for _, b := range boots {
		for _, difference := range b.DifferencesOver(10) {
			t.Error(difference)
		}
	}
}

// TestFaults kills each program before the machine is switched on. Nobody tells: the machine has to find out.
func TestFaults(t *testing.T) {
	t.Parallel() // labs do not see each other
	for _, test := range []struct {
		program string
		step    string
		reason  []string // parts
	}{
		{lab.DHCPRelay, journey.StepOffer, []string{"no OFFER", "dhcp-relay is not running (signal: killed)"}},
		{lab.Smee, journey.StepOffer, []string{"no OFFER", "smee is not running (signal: killed)"}},
		{lab.StackProxy, journey.StepTFTP, []string{"undionly.kpxe", "stack-proxy is not running (signal: killed)"}},
		{lab.Hegel, journey.StepMetadata, []string{"50061", "hegel is not running (signal: killed)"}},
		{lab.Tink, journey.StepGRPC, []string{"workflow stream", "tink is not running (signal: killed)"}},
	} {
		t.Run(test.program, func(t *testing.T) {
			t.Parallel()
			j := travel(t, "go", func(opts *journey.Options) {
				opts.Scale = 0.3
				opts.Ready = func(l *lab.Lab) error { return l.Kill(test.program) }
			})
			wantFailure(t, j, test.step, test.reason...)
		})
	}
}

func TestNoListener(t *testing.T) {
	t.Parallel() // labs do not see each other
	j := travel(t, "go", func(opts *journey.Options) {
		opts.Ready = func(l *lab.Lab) error {
			return l.Do(lab.RolePod, func() error {
				link, err := netlink.LinkByName("macvlan0")
				if err != nil {
					return err
				}
				return netlink.LinkDel(link)
			})
		}
	})
	wantFailure(t, j, journey.StepInterface, "no listener")
}

// TestCrash has programs end on their own: the step under way fails at once and says so.
func TestCrash(t *testing.T) {
	t.Parallel() // labs do not see each other
	for _, test := range []struct{ program, before, step string }{
		{lab.Hegel, "tftp", journey.StepTFTP}, // the step needs no Hegel, but the site is broken
		{lab.Smee, "script", journey.StepScript},
		{lab.DHCPRelay, "script", journey.StepScript}, // its first part is DHCP
		{lab.StackProxy, "install", journey.StepSyslog},
	} {
		t.Run(test.program, func(t *testing.T) {
			t.Parallel()
			noticed := make(chan struct{})
			j := travel(t, "go", func(opts *journey.Options) {
				log := opts.Passed
				opts.Passed = func(name string, s journey.Step) {
					log(name, s)
					if !s.OK {
						close(noticed)
					}
				}
				opts.Before = func(l *lab.Lab, what string) {
					if what != test.before {
						return
					}
					time.Sleep(200 * time.Millisecond) // what was done is seen by now
					if err := l.Proc(test.program).Signal(syscall.SIGKILL); err != nil {
						t.Error(err)
					}
					select {
					case <-noticed:
					case <-t.Context().Done():
					case <-time.After(20 * time.Second):
						t.Error("the machine is held, and nobody notices")
					}
				}
			})
			wantFailure(t, j, test.step, test.program+" ended unexpectedly")
		})
	}
}

// checkCapture looks at what passed on the networks.
func checkCapture(t *testing.T, j *journey.Journey) {
	t.Helper()
	file, err := os.Open(j.Capture)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	frames, err := observe.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	c := capture{t: t}
	for _, frame := range frames {
		if p, ok := observe.ParsePacket(frame.Frame); ok {
			c.packets = append(c.packets, packet{p, frame.Interface, frame})
		} else {
			c.cut(frame)
		}
	}
	ip := netip.MustParseAddr("192.0.2.101")
	c.relayedUnchanged()
	c.offersToChaddr()
	c.tftpFromPort69(ip)
	c.hegelKnows(ip)
}

type packet struct {
	observe.Packet
	network string
	observe.Captured
}

type capture struct {
	t       *testing.T
	packets []packet
}

// cut adds a frame of which only the beginning is kept, with its lengths set right.
func (c *capture) cut(frame observe.Captured) {
	if len(frame.Frame) >= frame.Length || len(frame.Frame) < 34 {
		return
	}
	whole := append(bytes.Clone(frame.Frame), make([]byte, frame.Length-len(frame.Frame))...)
	if p, ok := observe.ParsePacket(whole); ok {
		c.packets = append(c.packets, packet{p, frame.Interface, frame})
	}
}

// relayedUnchanged: what a machine broadcasts reaches Smee byte by byte, but for hops and giaddr.
func (c *capture) relayedUnchanged() {
	c.t.Helper()
	compared := 0
	for _, sent := range c.packets {
		if sent.network != observe.LAN || sent.To.Port() != 67 || len(sent.Payload) < 240 || sent.Payload[0] != 1 {
			continue
		}
		found := false
		for _, relayed := range c.packets {
			got := relayed.Payload
			if relayed.network != observe.Pods || relayed.To != netip.AddrPortFrom(lab.SmeeIP, 67) ||
				len(got) < len(sent.Payload) || messageType(got) != messageType(sent.Payload) ||
				!bytes.Equal(got[4:10], sent.Payload[4:10]) { // xid, secs: a client that sends again counts them
				continue
			}
			found = true
			compared++
			want := bytes.Clone(sent.Payload)
			want[3]++
			copy(want[24:28], lab.PodIP.AsSlice())
			if diff := cmp.Diff(want, got[:len(want)]); diff != "" {
				c.t.Errorf("a relayed message differs: %s", diff)
			}
			if padding := got[len(want):]; !bytes.Equal(padding, make([]byte, len(padding))) {
				c.t.Errorf("it is padded with % x", padding)
			}
			if relayed.From != netip.AddrPortFrom(lab.PodIP, 67) {
				c.t.Errorf("it comes from %s", relayed.From)
			}
			break
		}
		if !found {
			c.t.Errorf("message % x was not relayed", sent.Payload[4:8])
		}
	}
	if compared < 4 { // two or three rounds of DISCOVER and REQUEST
		c.t.Errorf("only %d relayed messages", compared)
	}
}

func messageType(payload []byte) dhcpv4.MessageType {
	message, err := dhcpv4.FromBytes(payload)
	if err != nil {
		return dhcpv4.MessageTypeNone
	}
	return message.MessageType()
}

// offersToChaddr: an OFFER goes to the machine's Ethernet address, unless it asked for a broadcast.
func (c *capture) offersToChaddr() {
	c.t.Helper()
	offers := 0
	for _, p := range c.packets {
		if p.network != observe.LAN || p.To.Port() != 68 {
			continue
		}
		message, err := dhcpv4.FromBytes(p.Payload)
		if err != nil || message.MessageType() != dhcpv4.MessageTypeOffer {
			continue
		}
		offers++
		if message.IsBroadcast() {
			continue
		}
		if !bytes.Equal(p.Dst, message.ClientHWAddr) {
			c.t.Errorf("an OFFER for %s goes to %s", message.ClientHWAddr, p.Dst)
		}
		if got := p.To.Addr(); got.String() != message.YourIPAddr.String() {
			c.t.Errorf("an OFFER of %s goes to %s", message.YourIPAddr, got)
		}
		if p.From.Port() != 67 {
			c.t.Errorf("an OFFER comes from %s", p.From)
		}
	}
	if offers < 2 {
		c.t.Errorf("only %d OFFERs", offers)
	}
}

// tftpFromPort69: every block comes from port 69 of the service IP.
func (c *capture) tftpFromPort69(machine netip.Addr) {
	c.t.Helper()
	ports := map[uint16]bool{}
	for _, p := range c.packets {
		if p.network == observe.LAN && p.Proto == unix.IPPROTO_UDP && p.To == netip.AddrPortFrom(lab.ServiceIP, 69) {
			ports[p.From.Port()] = true
		}
	}
	blocks := 0
	for _, p := range c.packets {
		if p.network != observe.LAN || p.Proto != unix.IPPROTO_UDP || p.To.Addr() != machine || !ports[p.To.Port()] ||
			len(p.Payload) < 4 || p.Payload[1] != 3 {
			continue
		}
		blocks++
		if p.From != netip.AddrPortFrom(lab.ServiceIP, 69) {
			c.t.Errorf("a block comes from %s", p.From)
		}
	}
	if blocks < 10 {
		c.t.Errorf("only %d TFTP blocks", blocks)
	}
}

// hegelKnows: Hegel is told the machine's own address, and its answer is about that machine.
func (c *capture) hegelKnows(machine netip.Addr) {
	c.t.Helper()
	asked, answered := 0, 0
	for _, p := range c.packets {
		text := string(p.Payload)
		switch {
		case p.network == observe.Pods && p.To == netip.AddrPortFrom(lab.HegelIP, 50061) && strings.HasPrefix(text, "GET /2"):
			asked++
			if !strings.Contains(text, "\r\nX-Forwarded-For: "+machine.String()+"\r\n") {
				c.t.Errorf("Hegel is asked for %q", text)
			}
		case p.network == observe.LAN && p.From == netip.AddrPortFrom(lab.ServiceIP, 50061):
			if p.To.Addr() != machine {
				c.t.Errorf("Hegel answers %s", p.To)
			}
			if strings.HasSuffix(strings.TrimRight(text, "\x00"), "\r\n\r\n"+machine.String()) {
				answered++
			}
		}
	}
	if asked < 3 || answered < 1 {
		c.t.Errorf("Hegel was asked %d times, and told the machine its address %d times", asked, answered)
	}
}

func wantFailure(t *testing.T, j *journey.Journey, step string, reason ...string) {
	t.Helper()
	got, why := j.Result.Machines[0].Failure()
	if j.Result.OK || (step != "" && got != step) {
		t.Fatalf("it failed at %q (%s), should at %s; ok: %v", got, why, step, j.Result.OK)
	}
	for _, part := range reason {
		if !strings.Contains(why, part) {
			t.Errorf("the reason does not tell of %q: %s", part, why)
		}
	}
	if line := j.Result.Failure(); strings.Contains(line, "\n") || !strings.Contains(line, "go: "+got+": ") {
		t.Errorf("the last line is %q", line)
	}
}
