package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// pod is a replica of a test: its page, which runs.
type pod struct {
	address netip.AddrPort
	journal *fake
	asked   atomic.Int64 // requests with own=true
	asking  atomic.Int64 // requests of other replicas without it, which would make a loop
}

// pods starts replicas that know of each other, and of the further addresses.
func pods(t *testing.T, n int, further ...netip.AddrPort) []*pod {
	t.Helper()
	all := make([]*pod, n)
	addresses := further
	listeners := make([]net.Listener, n)
	for i := range all {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i], all[i] = listener, &pod{address: listener.Addr().(*net.TCPAddr).AddrPort(), journal: newFake()}
		addresses = append(addresses, all[i].address)
	}
	for i, p := range all {
		s := New(Options{
			Journal: p.journal, Pod: fmt.Sprintf("pod-%d", i), ReplicaTimeout: 2 * time.Second,
			Replicas: func(context.Context) ([]netip.AddrPort, error) { return addresses, nil },
		})
		mux := http.NewServeMux()
		for pattern, handler := range s.Handlers() {
			mux.Handle(pattern, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Query().Get("own") == "true":
					p.asked.Add(1)
				case r.Header.Get(instanceHeader) != "":
					p.asking.Add(1)
				}
				handler.ServeHTTP(w, r)
			}))
		}
		server := &http.Server{Handler: mux}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- s.Run(ctx) }()
		go func() { ended <- server.Serve(listeners[i]) }()
		t.Cleanup(func() {
			cancel()
			_ = server.Close()
			<-ended
			<-ended
		})
	}
	return all
}

func (p *pod) list(t *testing.T, query string) List {
	t.Helper()
	_, _, body := get(t, "http://"+p.address.String()+"/api/v1/boots"+query)
	var l List
	if err := json.Unmarshal([]byte(body), &l); err != nil {
		t.Fatal(err)
	}
	return l
}

func ids(l List) (all []string) {
	for _, m := range l.Machines {
		all = append(all, m.ID+" "+m.Pod)
	}
	return all
}

// Each replica shows the machines of all, asks the others for their own only, and never itself or in a loop.
func TestReplicasShowEachOthersMachines(t *testing.T) {
	all := pods(t, 3)
	machines := site(30, time.Now())
	for i, m := range machines {
		all[i%3].journal.put(m)
	}
	for i, p := range all {
		l := p.list(t, "")
		if len(l.Machines) != len(machines) || len(l.Unanswered) != 0 {
			t.Fatalf("pod %d shows %d machines, %v", i, len(l.Machines), l.Unanswered)
		}
		if own := p.list(t, "?own=true"); len(own.Machines) != 10 {
			t.Errorf("pod %d has %d machines of its own", i, len(own.Machines))
		}
	}
	late := site(31, time.Now())[30]
	all[2].journal.put(late)
	testwait.Until(t, "a machine that another replica hears later", func() bool {
		return strings.Contains(strings.Join(ids(all[0].list(t, "")), "\n"), late.ID+" pod-2")
	})
	all[2].journal.remove(late.ID)
	testwait.Until(t, "its end", func() bool { return len(all[0].list(t, "").Machines) == len(machines) })
	status, _, body := get(t, "http://"+all[0].address.String()+"/api/v1/boots/"+machines[1].ID)
	var m Machine
	if err := json.Unmarshal([]byte(body), &m); err != nil || status != http.StatusOK {
		t.Fatalf("%d %v", status, err)
	}
	if m.Pod != "pod-1" || len(m.Boots[0].Steps[0].Answers) == 0 {
		t.Errorf("another replica's machine lacks its answers: %s", body)
	}
	if _, _, page := get(t, "http://"+all[0].address.String()+"/boots"); !strings.Contains(page, "pod-2") {
		t.Error("the page does not say which pod heard a machine")
	}
	for i, p := range all {
		if p.asking.Load() != 0 || p.asked.Load() == 0 {
			t.Errorf("pod %d was asked %d times for its own machines, %d times for all", i, p.asked.Load(), p.asking.Load())
		}
	}
}

// A replica that is away, silent, or answers nonsense is named; what the others know is shown all the same.
func TestReplicasThatDoNotAnswerAreNamed(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := closed.Addr().(*net.TCPAddr).AddrPort()
	_ = closed.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections; nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	answers := map[string]http.HandlerFunc{
		"it answers 404": http.NotFound,
		"failed to read": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "<html>") },
		"without an ID":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, `{"type":"machine"}`) },
		"it closed":      func(http.ResponseWriter, *http.Request) {},
		"token too long": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, strings.Repeat(" ", 2*replicaLine)) },
		"it answers 302 F": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		},
	}
	want := map[string]string{away.String(): "connection refused", silent.Addr().String(): "no answer within 2s"}
	further := []netip.AddrPort{away, silent.Addr().(*net.TCPAddr).AddrPort()}
	for reason, answer := range answers {
		server := httptest.NewServer(answer)
		defer server.Close()
		address := netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://"))
		want[address.String()], further = reason, append(further, address)
	}
	all := pods(t, 2, further...)
	machines := site(4, time.Now())
	for i, m := range machines {
		all[i%2].journal.put(m)
	}
	l := all[0].list(t, "")
	if len(l.Machines) != len(machines) {
		t.Errorf("%d machines", len(l.Machines))
	}
	got := map[string]string{}
	for _, u := range l.Unanswered {
		got[u.Replica] = u.Reason
	}
	for address, reason := range want {
		if !strings.Contains(got[address], reason) {
			t.Errorf("%s: got %q, want %q", address, got[address], reason)
		}
		delete(got, address)
	}
	if len(got) > 0 {
		t.Errorf("also %v", got)
	}
	_, _, body := get(t, "http://"+all[0].address.String()+"/boots")
	if !strings.Contains(body, "No answer from "+away.String()) {
		t.Error("the page names no replica that is away")
	}
	begin := time.Now()
	all[0].list(t, "")
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("replicas that are known to be away are waited for again: %v", took)
	}
}

// A machine that only another replica knows is found by who looks at nothing else before: a bookmark, the terminal.
func TestMachineOfAnotherReplicaIsFoundAtOnce(t *testing.T) {
	all := pods(t, 2)
	m := site(1, time.Now())[0]
	all[1].journal.put(m)
	status, _, body := get(t, "http://"+all[0].address.String()+"/api/v1/boots/"+m.ID)
	if status != http.StatusOK || strings.Contains(body, "unanswered") {
		t.Errorf("%d %s", status, body)
	}
}

// Replicas that follow each other do not keep each other at it: only whoever looks at all machines does.
func TestReplicasAreNotFollowedForOtherReplicas(t *testing.T) {
	none := func(context.Context) ([]netip.AddrPort, error) { return nil, nil }
	f := New(Options{Journal: newFake(site(2, time.Now())...), Replicas: none}).fleet
	asked, cancel := context.WithCancel(t.Context())
	cancel() // nobody runs, so that nothing is to be waited for
	f.snapshot(asked, false)
	f.snapshot(asked, true)
	if len(f.last) != 2 || f.idle(time.Now()) {
		t.Fatalf("%d snapshots, idle: %v", len(f.last), f.idle(time.Now()))
	}
	f.looked[false] = time.Now().Add(-2 * linger)
	f.snapshot(asked, true) // another replica follows this one
	f.look(true)
	if !f.idle(time.Now()) {
		t.Error("the others are followed while nobody looks but another replica")
	}
	if f.last[true] == nil || f.last[false] != nil {
		t.Errorf("snapshots that are kept: %v", f.last)
	}
}

// A name that is not found leaves this replica's machines, and says so.
func TestReplicasThatAreNotFound(t *testing.T) {
	f := newFake(site(2, time.Now())...)
	s := New(Options{Journal: f, Replicas: func(context.Context) ([]netip.AddrPort, error) { return nil, errors.New("no such host") }})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	now := s.fleet.snapshot(ctx, false)
	if len(now.entries) != 2 || len(now.unanswered) != 1 || now.unanswered[0].Reason != "no such host" {
		t.Errorf("%d machines, %v", len(now.entries), now.unanswered)
	}
}

// The parts of a boot that two replicas heard are one boot; two boots of one replica never are.
func TestJoin(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(1e9+second), 0) }
	step := func(s journal.Step, begin, end int) journal.StepView {
		return journal.StepView{Step: s, Result: journal.OK, Begin: at(begin), End: at(end), Bytes: 1}
	}
	boot := func(id string, state journal.State, steps ...journal.StepView) journal.BootView {
		last := steps[len(steps)-1]
		return journal.BootView{ID: id, Begin: steps[0].Begin, End: last.End, State: state, At: last.Step, Steps: steps}
	}
	machine := func(id, mac, pod string, boots ...journal.BootView) journal.MachineView {
		return journal.MachineView{ID: id, MAC: mac, Pod: pod, Address: netip.MustParseAddr("192.0.2.1"), Boots: boots}
	}
	const mac = "52:54:00:00:00:01"
	tests := map[string]struct {
		a, b []journal.MachineView
		want string
	}{
		"one boot": {
			[]journal.MachineView{machine(mac, mac, "a", boot("a1", journal.Stuck, step(journal.DHCP, 0, 5)))},
			[]journal.MachineView{machine(mac, mac, "b", boot("b1", journal.Booting, step(journal.Kernel, 20, 60)))},
			mac + " a, b: a1 booting at kernel dhcp kernel",
		},
		"by address": {
			[]journal.MachineView{machine(mac, mac, "a", boot("a1", journal.Booting, step(journal.DHCP, 0, 5)))},
			[]journal.MachineView{machine("192.0.2.1", "", "b", boot("b1", journal.Booting, step(journal.Kernel, 20, 60)))},
			mac + " a, b: a1 booting at kernel dhcp kernel",
		},
		"the same step in both": {
			[]journal.MachineView{machine(mac, mac, "a", boot("a1", journal.Booting, step(journal.DHCP, 0, 5), step(journal.Files, 9, 30)))},
			[]journal.MachineView{machine(mac, mac, "b", boot("b1", journal.Booted, step(journal.Files, 20, 60)))},
			mac + " a, b: a1 booted at files dhcp files",
		},
		"two boots": {
			[]journal.MachineView{machine(mac, mac, "a",
				boot("a2", journal.Booting, step(journal.DHCP, 90, 95)), boot("a1", journal.Booted, step(journal.DHCP, 0, 5)))},
			[]journal.MachineView{machine(mac, mac, "b", boot("b1", journal.Booted, step(journal.Kernel, 7, 60)))},
			mac + " a, b: a2 booting at dhcp dhcp; a1 booted at kernel dhcp kernel",
		},
		"long after": {
			[]journal.MachineView{machine(mac, mac, "a", boot("a1", journal.Quiet, step(journal.DHCP, 0, 5)))},
			[]journal.MachineView{machine(mac, mac, "b", boot("b1", journal.Booting, step(journal.Kernel, 3600, 3660)))},
			mac + " a, b: b1 booting at kernel kernel; a1 quiet at dhcp dhcp",
		},
		"others": {
			[]journal.MachineView{machine(mac, mac, "a", boot("a1", journal.Booting, step(journal.DHCP, 0, 5)))},
			[]journal.MachineView{{ID: "x", MAC: "x", Pod: "b", Boots: []journal.BootView{boot("b1", journal.Booting, step(journal.DHCP, 20, 60))}}},
			mac + " a: a1 booting at dhcp dhcp\nx b: b1 booting at dhcp dhcp",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var lines []string
			for _, m := range join([][]journal.MachineView{test.a, test.b}) {
				var boots []string
				for _, b := range m.Boots {
					text := fmt.Sprintf("%s %s at %s", b.ID, b.State, b.At)
					for _, s := range b.Steps {
						text += " " + string(s.Step)
					}
					boots = append(boots, text)
				}
				lines = append(lines, m.ID+" "+m.Pod+": "+strings.Join(boots, "; "))
			}
			if diff := cmp.Diff(test.want, strings.Join(lines, "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}
