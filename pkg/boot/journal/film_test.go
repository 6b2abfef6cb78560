package journal

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// start is when the tests' boots begin.
var start = time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)

// after is a time of a test, in seconds.
func after(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }

const (
	first  = "52:54:00:5e:00:01"
	second = "52:54:00:5e:00:02"
	third  = "52:54:00:5e:00:03"
	smee   = "192.0.2.2"
	files  = "198.51.100.8"
)

// scene is a machine that events are about, and its address.
type actor struct {
	mac, address string
}

var (
	one   = actor{first, "192.0.2.101"}
	two   = actor{second, "192.0.2.102"}
	three = actor{third, "192.0.2.103"}
)

// shot is an event at a time, in seconds; the event's own time is set when it is recorded.
type shot struct {
	at    float64
	event boot.Event
}

// draft is an event whose texts are not set yet, since that is to be done in their order.
type draft struct {
	boot.Event
	texts [boot.Reason + 1]string
}

func (d *draft) shot(at float64, options []option) shot {
	for _, o := range options {
		o(d)
	}
	for f, text := range d.texts {
		boot.SetText(&d.Event, boot.Field(f), 300, text)
	}
	return shot{at, d.Event}
}

type option func(*draft)

func with(f boot.Field, s string) option { return func(d *draft) { d.texts[f] = s } }

func arch(a uint16) option { return func(e *draft) { e.HasArch, e.Arch = true, a } }

func bytes16(s string) [16]byte {
	if s == "" {
		return [16]byte{}
	}
	return boot.Bytes(netip.MustParseAddr(s))
}

func (a actor) dhcp(at float64, kind boot.Kind, t uint8, options ...option) shot {
	d := draft{Event: boot.Event{Kind: kind, DHCP: t, MAC: parse(a.mac)}}
	return d.shot(at, options)
}

func parse(s string) [6]byte {
	mac, err := net.ParseMAC(s)
	if err != nil {
		panic(s)
	}
	return [6]byte(mac)
}

// pxe, rom, tinkerbell and plain are who asks: firmware, iPXE as firmware, iPXE of Smee, an operating system.
var (
	pxe        = []option{with(boot.VendorClass, "PXEClient:Arch:00007:UNDI:003000"), arch(7)}
	rom        = []option{arch(0), with(boot.VendorClass, "PXEClient:Arch:00000:UNDI:002001"), with(boot.UserClass, "iPXE")}
	tinkerbell = []option{arch(7), with(boot.VendorClass, "PXEClient:Arch:00007:UNDI:003010"), with(boot.UserClass, "Tinkerbell")}
	plain      = []option{with(boot.VendorClass, "udhcp 1.36.1"), with(boot.HostName, "hook")}
)

func (a actor) discover(at float64, who []option, more ...option) shot {
	return a.dhcp(at, boot.DHCPRequest, 1, append(append([]option{}, more...), who...)...)
}

func (a actor) request(at float64, who []option, server string) shot {
	return a.dhcp(at, boot.DHCPRequest, 3, append([]option{func(e *draft) {
		e.Requested, e.Server = bytes16(a.address), bytes16(server)
	}}, who...)...)
}

func (a actor) reply(at float64, t uint8, file string, more ...option) shot {
	return a.dhcp(at, boot.DHCPReply, t, append([]option{func(e *draft) {
		e.Given, e.Server, e.Next, e.Lease = bytes16(a.address), bytes16(smee), bytes16(smee), 3600
		e.Endpoint, e.Port = bytes16(smee), 67
	}, with(boot.File, file)}, more...)...)
}

// lease is a whole exchange.
func (a actor) lease(at float64, who []option, file string) []shot {
	return []shot{
		a.discover(at, who), a.reply(at+0.1, 2, file), a.request(at+0.2, who, smee), a.reply(at+0.3, 5, file),
	}
}

func dropped(reason string) option {
	return func(e *draft) {
		e.Outcome = boot.Dropped
		e.texts[boot.Reason] = reason
	}
}

func (a actor) proxied(at, took float64, kind boot.Kind, server string, port uint16, options ...option) shot {
	d := draft{Event: boot.Event{
		Kind: kind, Outcome: boot.Done, Client: bytes16(a.address), Took: time.Duration(took * float64(time.Second)),
		Endpoint: bytes16(server), Port: port,
	}}
	return d.shot(at, options)
}

func size(n uint64) option { return func(e *draft) { e.Bytes, e.Expected = n, n } }

func status(s uint16) option { return func(e *draft) { e.Status = s } }

func outcome(o boot.Outcome) option { return func(e *draft) { e.Outcome = o } }

// tftp is a transfer that ended at a time.
func (a actor) tftp(at, took float64, file string, options ...option) shot {
	return a.proxied(at, took, boot.TFTP, smee, 69, append([]option{func(e *draft) {
		e.AskedPort, e.Block, e.Bytes, e.Expected = 69, 1468, 97000, 97000
	}, with(boot.File, file)}, options...)...)
}

// get is an HTTP request that ended at a time, of iPXE unless options say otherwise.
func (a actor) get(at, took float64, server string, port uint16, file string, options ...option) shot {
	s := a.proxied(at, took, boot.HTTP, server, port, append([]option{func(e *draft) {
		e.AskedPort, e.Status, e.Bytes, e.Expected = port, 200, 1000, 1000
	}, with(boot.File, file), with(boot.Agent, "iPXE/1.21.1+")}, options...)...)
	return s
}

func (a actor) script(at float64, options ...option) shot {
	return a.get(at, 0.1, smee, 7171, "/"+a.mac+"/auto.ipxe", append([]option{size(1300)}, options...)...)
}

func (a actor) kernel(at float64, options ...option) shot {
	return a.get(at, 1, files, 8080, "/vmlinuz-x86_64", append([]option{size(9 << 20)}, options...)...)
}

func (a actor) initramfs(at float64, options ...option) shot {
	return a.get(at, 2, files, 8080, "/initramfs-x86_64", append([]option{size(90 << 20)}, options...)...)
}

func (a actor) agent(at, took float64, o boot.Outcome, options ...option) shot {
	return a.proxied(at, took, boot.Stream, smee, 42113, append([]option{func(e *draft) {
		e.AskedPort, e.Outcome = 42113, o
	}, with(boot.Where, "tink")}, options...)...)
}

func (a actor) metadata(at float64, options ...option) shot {
	return a.get(at, 0.1, smee, 50061, "/2009-04-04/meta-data", options...)
}

func (a actor) log(at float64, tag, line string) shot {
	return a.proxied(at, 0, boot.Syslog, smee, 514, with(boot.Agent, tag), with(boot.Message, line), func(e *draft) {
		e.AskedPort, e.Outcome, e.Priority = 514, boot.Passed, 6
	})
}

// film puts shots and lists of them into one.
func film(parts ...any) []shot {
	var all []shot
	for _, p := range parts {
		switch p := p.(type) {
		case shot:
			all = append(all, p)
		case []shot:
			all = append(all, p...)
		default:
			panic("neither a shot nor several")
		}
	}
	return all
}

// toLoader, toScript, toKernel and toSystem are boots that went well so far; they end some 2, 5, 9 and 31 seconds after at.
func (a actor) toLoader(at float64) []shot {
	return film(a.lease(at, pxe, "ipxe.efi"), a.tftp(at+2, 1, "ipxe.efi"))
}

func (a actor) toIPXE(at float64) []shot {
	return film(a.toLoader(at), a.lease(at+4, tinkerbell, "http://192.0.2.2:7171/"+a.mac+"/auto.ipxe"))
}

func (a actor) toScript(at float64) []shot { return film(a.toIPXE(at), a.script(at+5)) }

func (a actor) toKernel(at float64) []shot {
	return film(a.toScript(at), a.kernel(at+6.5), a.initramfs(at+9))
}

func (a actor) toSystem(at float64) []shot {
	return film(a.toKernel(at), a.lease(at+30, plain, ""), a.log(at+31, "kernel", "Linux version 6.6"))
}

func (a actor) toAgent(at float64) []shot {
	return film(a.toSystem(at), a.metadata(at+33), a.agent(at+35, 0, boot.Began))
}

// play records shots and ticks every second until a time.
func play(j *Journal, shots []shot, until float64) {
	clock := 1.0
	if len(shots) > 0 {
		clock = float64(int(shots[0].at) + 1)
	}
	for _, s := range shots {
		for ; clock <= s.at; clock++ {
			j.Tick(after(clock))
		}
		e := s.event
		e.At = after(s.at).UnixNano()
		j.Record(&e)
	}
	for ; clock <= until; clock++ {
		j.Tick(after(clock))
	}
}

// put records shots without telling the time in between.
func put(j *Journal, shots ...shot) {
	for _, s := range shots {
		s.event.At = after(s.at).UnixNano()
		j.Record(&s.event)
	}
}

// wait ticks every second.
func wait(j *Journal, from, until float64) {
	for clock := from; clock <= until; clock++ {
		j.Tick(after(clock))
	}
}

func newest(t *testing.T, j *Journal, id string) BootView {
	t.Helper()
	m, ok := j.Machine(id)
	if !ok || len(m.Boots) == 0 {
		t.Fatalf("no boot of machine %s", id)
	}
	return m.Boots[0]
}

func causeName(b BootView) string {
	if b.Cause == nil {
		return ""
	}
	return b.Cause.Name
}
