package journal

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/boot"
)

func uuid(n byte) option {
	return func(d *draft) {
		d.UUID = [16]byte{0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, n}
	}
}

// ids lists the machines, with their addresses and numbers of answers.
func ids(j *Journal) map[string]string {
	all := map[string]string{}
	for _, v := range j.Machines() {
		m, _ := j.Machine(v.ID)
		n := 0
		for _, b := range m.Boots {
			for _, s := range b.Steps {
				if !s.Step.isDHCP() {
					n += len(s.Answers)
				}
			}
		}
		all[v.ID] = fmt.Sprintf("%v %d", m.Address, n)
	}
	return all
}

// Whose an event is that names an address only.
func TestWhoseAnAddressIs(t *testing.T) {
	file := func(a actor, at float64) shot { return a.get(at, 0.1, files, 8080, "/vmlinuz") }
	nameless := actor{"", one.address}
	short := func(d *draft) { d.Lease = 60 }
	for _, c := range []struct {
		name  string
		shots []shot
		want  map[string]string
	}{
		{"by ACK", film(one.lease(0, pxe, "x"), file(nameless, 2)), map[string]string{first: "192.0.2.101 1"}},
		{"by REQUEST", film(one.request(0, pxe, smee), file(nameless, 2)), map[string]string{first: "192.0.2.101 1"}},
		{"by OFFER", film(one.lease(0, pxe, "x")[:2], file(nameless, 2)), map[string]string{first: "192.0.2.101 1"}},
		{"by path", film(one.script(0), file(nameless, 2)), map[string]string{first: "192.0.2.101 2"}},
		{"by path, afterwards", film(file(nameless, 0), one.script(2)), map[string]string{first: "192.0.2.101 2"}},
		{"by path, long afterwards", film(file(nameless, 0), one.script(900)), map[string]string{first: "192.0.2.101 1", one.address: "invalid IP 1"}},
		{"address alone", film(file(nameless, 0), file(nameless, 1)), map[string]string{one.address: "192.0.2.101 1"}},
		{"used by another after a lease", film(one.lease(0, pxe, "x"), file(nameless, 2), actor{second, one.address}.lease(4000, pxe, "x"), file(nameless, 4002)),
			map[string]string{first: "invalid IP 1", second: "192.0.2.101 1"}},
		{"given to another within the lease", film(one.lease(0, pxe, "x"), actor{second, one.address}.lease(100, pxe, "x"), file(nameless, 102)),
			map[string]string{first: "invalid IP 0", second: "192.0.2.101 1"}},
		{"a REQUEST does not take it within the lease", film(one.lease(0, pxe, "x"), actor{second, one.address}.request(100, pxe, smee), file(nameless, 102)),
			map[string]string{first: "192.0.2.101 1", second: "invalid IP 0"}},
		{"a REQUEST takes it after the lease", film(one.reply(0, 5, "x", short), actor{second, one.address}.request(100, pxe, smee), file(nameless, 102)),
			map[string]string{first: "invalid IP 0", second: "192.0.2.101 1"}},
		{"a path that names another machine", film(one.lease(0, pxe, "x"), two.lease(0, pxe, "x"), actor{second, one.address}.script(2), file(nameless, 3)),
			map[string]string{first: "192.0.2.101 2", second: "192.0.2.102 0"}},
		{"a path from an address that is nobody's", film(one.lease(0, pxe, "x"), actor{first, "10.0.0.5"}.script(2)), map[string]string{first: "192.0.2.101 0"}},
		{"paths from an address that is a router's", film(one.lease(0, pxe, "x"), two.lease(0, pxe, "x"), actor{first, "10.0.0.5"}.script(2),
			actor{second, "10.0.0.5"}.script(2), actor{"", "10.0.0.5"}.kernel(3)), map[string]string{first: "192.0.2.101 0", second: "192.0.2.102 0"}},
		{"a path that makes a machine up", film(one.lease(0, pxe, "x"), actor{third, one.address}.script(2)), map[string]string{first: "192.0.2.101 1"}},
		{"released", film(one.lease(0, pxe, "x"), one.dhcp(5, boot.DHCPRequest, 7, func(d *draft) { d.Client = bytes16(one.address) }), file(nameless, 6)),
			map[string]string{first: "invalid IP 0", one.address: "192.0.2.101 1"}},
		{"by DHCPv6", film(actor{first, "2001:db8::101"}.lease6(0, "x", pxe...), actor{"", "2001:db8::101"}.get(2, 1, files, 80, "/vmlinuz")),
			map[string]string{first: "2001:db8::101 1"}},
		{"a group's MAC", film(actor{"01:00:5e:00:00:01", ""}.discover(0, pxe)), map[string]string{}},
		{"the host itself", film(actor{"", "192.0.2.2"}.get(0, 0, files, 80, "/vmlinuz")), map[string]string{}},
		{"nobody", film(actor{"", ""}.get(0, 0, files, 80, "/x")), map[string]string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := New(Options{Self: []netip.Addr{netip.MustParseAddr("192.0.2.2")}})
			play(j, c.shots, 0)
			if diff := cmp.Diff(c.want, ids(j)); diff != "" {
				t.Error(diff)
			}
			check(t, j)
		})
	}
}

func TestUUIDJoinsMACs(t *testing.T) {
	j := New(Options{})
	nic := func(n int) actor { return actor{fmt.Sprintf("52:54:00:5e:01:%02x", n), ""} }
	play(j, film(nic(1).discover(0, pxe, uuid(1)), nic(1).discover(4, pxe, uuid(1)), nic(2).discover(20, pxe, uuid(1)), nic(3).discover(21, pxe, uuid(2))), 0)
	m, ok := j.Machine("52:54:00:5e:01:02")
	if !ok || m.ID != "52:54:00:5e:01:01" || len(m.Boots) != 1 ||
		m.UUID != "00112233-4455-6677-8899-aabbccddee01" || !slices.Equal(m.OtherMACs, []string{"52:54:00:5e:01:02"}) {
		t.Errorf("got %+v", m)
	}
	if n := len(j.Machines()); n != 2 {
		t.Errorf("got %d machines, want 2", n)
	}
	// A UUID that many boards have is not a machine's.
	j = New(Options{})
	for n := range 20 {
		play(j, film(nic(n).discover(float64(n), pxe, uuid(1))), 0)
	}
	if n := len(j.Machines()); n != 20-maxMACs+1 {
		t.Errorf("got %d machines", n)
	}
	check(t, j)
	j = New(Options{})
	for n := range 5 {
		play(j, film(nic(n).discover(float64(n), pxe, func(d *draft) {
			for i := range d.UUID {
				d.UUID[i] = 0xff
			}
		})), 0)
	}
	if n := len(j.Machines()); n != 5 {
		t.Errorf("got %d machines", n)
	}
}

func TestMachineByAnyName(t *testing.T) {
	j := New(Options{})
	play(j, one.lease(0, pxe, "x"), 0)
	for _, name := range []string{first, "52-54-00-5E-00-01", "5254.005e.0001", one.address, "::ffff:" + one.address} {
		if m, ok := j.Machine(name); !ok || m.ID != first {
			t.Errorf("%s: got %q", name, m.ID)
		}
	}
	for _, name := range []string{"", second, two.address, "x"} {
		if m, ok := j.Machine(name); ok {
			t.Errorf("%s: got %q", name, m.ID)
		}
	}
}

func TestMACInPath(t *testing.T) {
	for path, want := range map[string]string{
		"/52:54:00:5e:00:01/auto.ipxe": first, "52:54:00:5e:00:01/undionly.kpxe": first, "pxelinux.cfg/01-52-54-00-5E-00-01": first,
		"/iso/52:54:00:5e:00:01/hook.iso": first, "/boot?mac=52:54:00:5e:00:01&x=1": first, "/52-54-00-5e-00-01": first,
		"/52:54-00:5e:00:01/x": "", "/52:54:00:5e:00:01:02/x": "", "/01:00:5e:00:00:01/x": "", "/00:00:00:00:00:00/x": "", "": "",
		"/52:54:00:5e:00:0g/x": "", "/02-52-54-00-5e-00-01": "",
	} {
		got := ""
		if mac := macIn([]byte(path)); mac != ([6]byte{}) {
			got = macString(mac)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

// check holds the journal's parts against each other.
func check(t testing.TB, j *Journal) {
	t.Helper()
	l := j.options.Limits
	bytes, listed, macs, addresses := 0, 0, 0, 0
	for id, m := range j.ids {
		if m.id != id || m.forgotten {
			t.Fatalf("machine %s is kept as %s", m.id, id)
		}
		if got := m.measure(); got != m.size {
			t.Fatalf("machine %s takes %d bytes, and %d are accounted", id, got, m.size)
		}
		bytes += m.size
		macs += len(m.macs)
		addresses += len(m.addresses)
		for _, mac := range m.macs {
			if j.macs[mac] != m {
				t.Fatalf("MAC %s is not that of %s", macString(mac), id)
			}
		}
		for _, a := range m.addresses {
			if j.addresses[a].machine != m {
				t.Fatalf("address %s is not that of %s", a, id)
			}
		}
		if len(m.boots) > l.Boots || len(m.lines) > l.Lines || len(m.macs) > maxMACs || len(m.addresses) > maxAddresses {
			t.Fatalf("machine %s has %d boots, %d lines", id, len(m.boots), len(m.lines))
		}
		for _, b := range m.boots {
			if len(b.steps) > maxSteps || len(b.messages)+len(b.steps) > max(l.Messages, maxSteps) {
				t.Fatalf("a boot of %s has %d steps and %d answers", id, len(b.steps), len(b.messages))
			}
			for _, a := range b.messages {
				if int(a.step) >= len(b.steps) {
					t.Fatalf("an answer of %s belongs to step %d of %d", id, a.step, len(b.steps))
				}
			}
		}
		if in := m.ranked.in; in != &j.byRank[m.rank] {
			t.Fatalf("machine %s of rank %d is in another list", id, m.rank)
		}
		if (len(m.boots) > 1) != (m.past.in != nil) {
			t.Fatalf("machine %s with %d boots: history is wrong", id, len(m.boots))
		}
	}
	for r := range j.byRank {
		for m := j.byRank[r].First(); m != nil; m = m.ranked.Next() {
			listed++
		}
	}
	bound := map[netip.Addr]bool{}
	for a, b := range j.addresses {
		if b.machine == nil || b.machine.forgotten {
			t.Fatalf("address %s belongs to a machine that is forgotten", a)
		}
		bound[a] = true
	}
	if bytes != j.bytes || bytes > l.Bytes || len(j.ids) > l.Machines || listed != len(j.ids) || macs != len(j.macs) ||
		addresses != len(bound) || len(j.uuids) > len(j.ids) || len(j.active) > len(j.ids) {
		t.Fatalf("%d bytes of %d accounted, limit %d; %d machines, %d listed; %d MACs of %d; %d addresses of %d; %d UUIDs; %d active",
			bytes, j.bytes, l.Bytes, len(j.ids), listed, macs, len(j.macs), addresses, len(bound), len(j.uuids), len(j.active))
	}
}
