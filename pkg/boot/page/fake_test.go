package page

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// fake is a journal that a test fills.
type fake struct {
	mu       sync.Mutex
	machines map[string]journal.MachineView
	version  uint64
}

func newFake(machines ...journal.MachineView) *fake {
	f := &fake{machines: map[string]journal.MachineView{}}
	for _, m := range machines {
		f.put(m)
	}
	return f
}

// put adds or changes a machine.
func (f *fake) put(m journal.MachineView) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.machines[m.ID] = m
	f.version++
}

func (f *fake) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.machines, id)
	f.version++
}

func (f *fake) Machines() []journal.MachineView {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]journal.MachineView, 0, len(f.machines))
	for _, m := range f.machines {
		m = copied(m)
		m.Lines, m.Boots = nil, m.Boots[:min(len(m.Boots), 1)]
		for i := range m.Boots {
			for j := range m.Boots[i].Steps {
				m.Boots[i].Steps[j].Answers = nil
			}
		}
		all = append(all, m)
	}
	return all
}

func (f *fake) Machine(id string) (journal.MachineView, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, ok := f.machines[id]
	return copied(m), ok
}

// copied returns a machine that shares nothing with the original.
func copied(m journal.MachineView) journal.MachineView {
	m.Lines, m.OtherMACs, m.Boots = slices.Clone(m.Lines), slices.Clone(m.OtherMACs), slices.Clone(m.Boots)
	for i := range m.Boots {
		b := &m.Boots[i]
		if b.Cause != nil {
			c := *b.Cause
			c.Others = slices.Clone(c.Others)
			b.Cause = &c
		}
		b.Steps = slices.Clone(b.Steps)
		for j := range b.Steps {
			b.Steps[j].Answers = slices.Clone(b.Steps[j].Answers)
		}
	}
	return m
}

func (f *fake) Version() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version
}

// tale is a machine's boot as a script tells it: each step by how long it took, in milliseconds, and how it ended.
type tale struct {
	mac     string
	address string
	name    string
	arch    string
	began   time.Time
	steps   []told
	state   journal.State
	next    journal.Step
	cause   *journal.Cause
}

type told struct {
	step     journal.Step
	wait, ms int // since the step before, of itself
	result   journal.Result
	text     string
	bytes    uint64
	answers  []journal.Answer // their times are since the step's begin
}

var (
	smee  = netip.MustParseAddrPort("10.96.14.20:7171")
	tftp  = netip.MustParseAddrPort("10.96.14.20:69")
	dhcp  = netip.MustParseAddrPort("10.96.14.20:67")
	hegel = netip.MustParseAddrPort("10.96.3.7:50061")
	tink  = netip.MustParseAddrPort("10.96.8.42:42113")
)

// whole is a boot with all its steps, as Tinkerbell's machines take them.
func whole(mac, address string) []told {
	ms := func(n int) time.Time { return time.UnixMilli(int64(n)) }
	one := func(kind, text, result string, from netip.AddrPort, bytes uint64, begin, end int) journal.Answer {
		return journal.Answer{
			Kind: kind, Text: text, Result: result, OK: true, From: from, Bytes: bytes, Begin: ms(begin), End: ms(end), Count: 1,
		}
	}
	lease := func(n int) []journal.Answer {
		offer := address + " lease 24 h"
		all := []journal.Answer{
			one("DISCOVER", "xid 5f3c1a0"+fmt.Sprint(n), "passed on", netip.AddrPort{}, 0, 0, 0), one("OFFER", offer, "passed on", dhcp, 0, 3, 4),
			one("REQUEST", address, "passed on", netip.AddrPort{}, 0, 900, 900), one("ACK", offer, "passed on", dhcp, 0, 904, 905),
		}
		all[0].Count = n
		return all
	}
	get := func(path string, bytes uint64, took int) []journal.Answer {
		return []journal.Answer{one("GET", path, "200", smee, bytes, 0, took)}
	}
	return []told{
		{journal.DHCP, 0, 905, journal.OK, address, 0, lease(2)},
		{journal.Loader, 210, 640, journal.OK, "undionly.kpxe", 74810, []journal.Answer{
			one("TFTP", "undionly.kpxe, 1468 B blocks", "done", tftp, 74810, 0, 640),
		}},
		{journal.IPXEDHCP, 2700, 1010, journal.OK, address, 0, lease(1)},
		{journal.Script, 40, 12, journal.OK, "/" + mac + "/auto.ipxe", 1812, get("/"+mac+"/auto.ipxe", 1812, 12)},
		{journal.Kernel, 90, 1340, journal.OK, "/vmlinuz-x86_64", 9<<20 + 31337, get("/vmlinuz-x86_64", 9<<20+31337, 1340)},
		{journal.Initramfs, 25, 8100, journal.OK, "/initramfs-x86_64", 211<<20 + 4242, get("/initramfs-x86_64", 211<<20+4242, 8100)},
		{journal.OSDHCP, 7400, 320, journal.OK, address, 0, lease(1)},
		{journal.Syslog, 500, 25000, journal.OK, "31 lines", 0, nil},
		{journal.Metadata, 1100, 30, journal.OK, "/metadata", 2210, []journal.Answer{one("GET", "/metadata", "200", hegel, 2210, 0, 30)}},
		{journal.Agent, 400, 21000, journal.OK, "GetWorkflowContexts", 40210, []journal.Answer{
			one("gRPC", "/proto.WorkflowService/GetWorkflowContexts", "0 OK", tink, 40210, 0, 21000),
		}},
		{journal.Files, 900, 15400, journal.OK, "/images/ubuntu-2404.raw.gz", 1503<<20 + 77, get("/images/ubuntu-2404.raw.gz", 1503<<20+77, 15400)},
	}
}

// view makes the machine that a tale is about.
func (t tale) view() journal.MachineView {
	b := journal.BootView{
		ID: fmt.Sprintf("%d-%s", t.began.UnixMilli(), t.mac), Begin: t.began, End: t.began, State: t.state, Next: t.next, Cause: t.cause,
		Steps: []journal.StepView{},
	}
	at := t.began
	for _, s := range t.steps {
		at = at.Add(time.Duration(s.wait) * time.Millisecond)
		end := at.Add(time.Duration(s.ms) * time.Millisecond)
		v := journal.StepView{Step: s.step, Result: s.result, Begin: at, End: end, Bytes: s.bytes, Text: s.text}
		for _, a := range s.answers {
			a.Begin, a.End = at.Add(time.Duration(a.Begin.UnixMilli())*time.Millisecond), at.Add(time.Duration(a.End.UnixMilli())*time.Millisecond)
			if a.From.IsValid() {
				v.From = a.From.String()
			}
			v.Answers = append(v.Answers, a)
		}
		b.Steps = append(b.Steps, v)
		b.At, b.End = s.step, end
		at = end
		if s.step == journal.Syslog || s.step == journal.Agent { // others go on beside it
			at = v.Begin
		}
	}
	for _, s := range b.Steps {
		if s.End.After(b.End) {
			b.End = s.End
		}
	}
	if b.Cause != nil && b.Cause.Since.IsZero() {
		b.Cause.Since = b.End
	}
	m := journal.MachineView{
		ID: t.mac, MAC: t.mac, Name: t.name, Arch: t.arch, UUID: "4c4c4544-0042-3510-8052-b4c04f4e4a32",
		VendorClass: "PXEClient:Arch:00000:UNDI:002001", UserClass: "iPXE", Boots: []journal.BootView{b},
	}
	if t.name != "" {
		m.Hardware = "tinkerbell/" + t.name
	}
	if t.address != "" {
		m.Address = netip.MustParseAddr(t.address)
	}
	if slices.ContainsFunc(t.steps, func(s told) bool { return s.step == journal.Syslog }) {
		m.Lines = bootLog(b.Begin.Add(21 * time.Second))
	}
	return m
}

func bootLog(at time.Time) []journal.LineView {
	var lines []journal.LineView
	for i, text := range []string{
		"info kernel Linux version 6.6.71-linuxkit (root@buildkitsandbox) #1 SMP PREEMPT_DYNAMIC",
		"info kernel Command line: facility=onprem syslog_host=192.0.2.2 grpc_authority=192.0.2.2:42113 console=ttyS0,115200",
		"notice kernel virtio_net virtio0 eth0: renamed from enp1s0", "warning kernel ACPI: SPCR: Unexpected SPCR Access Width",
		"info dhcpcd eth0: leased 192.0.2.51 for 86400 seconds", "info tink-agent starting, worker id 52:54:00:5e:00:01",
		"err tink-agent action \"stream image\": read tcp: connection reset, trying again", "info tink-agent action \"stream image\" done",
	} {
		var severity, tag string
		_, _ = fmt.Sscan(text, &severity, &tag)
		at = at.Add(time.Duration(i) * 870 * time.Millisecond)
		lines = append(lines, journal.LineView{At: at, Facility: "daemon", Severity: severity, Tag: tag, Text: text[len(severity)+len(tag)+2:]})
	}
	return lines
}

// site makes n machines that boot at once, some of them stuck.
func site(n int, now time.Time) []journal.MachineView {
	likely := func(name, text, remedy string) *journal.Cause {
		return &journal.Cause{Name: name, Text: text, Remedy: remedy}
	}
	all := make([]journal.MachineView, 0, n)
	for i := range n {
		mac := fmt.Sprintf("52:54:00:5e:%02x:%02x", i/256, i%256)
		address := fmt.Sprintf("192.0.%d.%d", 2+i/250, 1+i%250)
		t := tale{
			mac: mac, address: address, name: fmt.Sprintf("rack%02d-node%02d", i/40+1, i%40+1), arch: "x86 BIOS", state: journal.Booting,
			steps: whole(mac, address),
		}
		var took int
		if i%3 == 1 {
			t.arch, t.steps[1].text = "x86-64 UEFI", "ipxe.efi"
		}
		switch i % 20 {
		case 0:
			if i%100 == 0 && i > 0 {
				t.steps, t.state, t.name, t.address = t.steps[:1], journal.Stuck, "", ""
				t.steps[0].result, t.steps[0].text, t.next = journal.Failed, "", ""
				t.steps[0].answers = t.steps[0].answers[:1]
				t.steps[0].answers[0].Count, t.steps[0].answers[0].OK, t.steps[0].answers[0].Result = 14, false, "no answer"
				t.cause = likely("no-hardware", "It asks again and again for an address and no server answers it; 41 other machines are answered.",
					"Add a Hardware object with this MAC: the closest is 52:54:00:5e:00:0f of tinkerbell/rack01-node16.")
				took = 150
				break
			}
			t.steps, t.next, t.state = t.steps[:4], journal.Kernel, journal.Stuck
			t.steps[3].result, t.steps[3].text, t.steps[3].bytes = journal.Failed, "/"+mac+"/auto.ipxe", 9
			t.steps[3].answers[0].OK, t.steps[3].answers[0].Result, t.steps[3].answers[0].Bytes = false, "404", 9
			t.cause = likely("not-found", "The server at 10.96.14.20:7171 answered 404 to GET /"+mac+"/auto.ipxe; it served the same file to 41 other machines.",
				"Check that a workflow exists for this machine, and that its Hardware object has an iPXE script or a netboot section.")
			t.cause.Certain = true
			took = 95 + i%60
		case 1, 2, 3, 4, 5, 6, 7:
			t.steps, t.next = t.steps[:6], journal.OSDHCP
			t.steps[5].result, t.steps[5].bytes = journal.Going, uint64(3+i%90)<<20
			t.steps[5].ms = 2000 + i%3000
			took = 8 + i%4
		case 8, 9:
			t.steps, t.next = t.steps[:2], journal.IPXEDHCP
			took = 2
		case 19:
			t.steps, t.state = t.steps[:7], journal.Quiet
			took = 1900
		default:
			t.state = journal.Booted
			took = 80 + i%900
		}
		t.began = now.Add(-time.Duration(took)*time.Second - time.Duration(i*37%1000)*time.Millisecond)
		all = append(all, t.view())
	}
	return all
}
