package hostlink

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
)

// TestSeveralEnsureAtOnce: of several at a time in one pod one makes the listener, and the others keep it.
func TestSeveralEnsureAtOnce(t *testing.T) {
	n := newNode(t)
	hosts := make([]*Host, 5)
	for i := range hosts {
		hosts[i] = n.open(t)
	}
	for round := range 20 {
		made, errs := make([]Listener, len(hosts)), make([]error, len(hosts))
		var all sync.WaitGroup
		for i, h := range hosts {
			all.Go(func() { made[i], errs[i] = h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"}) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		var actions []Action
		for _, l := range made {
			actions = append(actions, l.Action)
			if !slices.Equal(l.MAC, made[0].MAC) {
				t.Errorf("round %d: got the addresses %s and %s", round, l.MAC, made[0].MAC)
			}
		}
		slices.Sort(actions)
		if diff := cmp.Diff([]Action{Create, Keep, Keep, Keep, Keep}, actions); diff != "" {
			t.Errorf("round %d: actions differ (-want +got):\n%s", round, diff)
		}
		if diff := cmp.Diff([]string{"lo", "macvlan0"}, names(t, n.pod)); diff != "" {
			t.Errorf("round %d: links of the pod differ (-want +got):\n%s", round, diff)
		}
		if err := n.pod.Links().LinkDel(n.pod.Link(t, "macvlan0")); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOtherPodsDoNotWait: the lock is the pod's own.
func TestOtherPodsDoNotWait(t *testing.T) {
	n := newNode(t)
	other := &node{host: n.host, pod: nstest.New(t), pid: n.pid}
	held := n.open(t)
	if err := held.lock.hold(func() error {
		_, err := other.open(t).Ensure(Spec{Name: "macvlan0", Parent: "prov0"})
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestEveryErrorHasItsCause stages what happens when another program changes the same interfaces without the lock, as
// an older broadcast-init does, and what the kernel may answer besides.
func TestEveryErrorHasItsCause(t *testing.T) {
	spec := Spec{Name: "macvlan0", Parent: "prov0"}
	begin := func(t *testing.T) (*node, *Host, Plan, netlink.Link) {
		n := newNode(t)
		h := n.open(t)
		plan, err := h.Plan(spec)
		if err != nil {
			t.Fatal(err)
		}
		link, err := h.create(plan)
		if err != nil {
			t.Fatal(err)
		}
		return n, h, plan, link
	}
	remove := func(t *testing.T, n *node, link netlink.Link) {
		if err := n.pod.Links().LinkDel(link); err != nil {
			t.Fatal(err)
		}
	}
	foreign := func(t *testing.T, n *node, name string) {
		add(t, n.pod, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
	}
	staged := map[string]func(t *testing.T) error{
		"no such interface: it went after it was made": func(t *testing.T) error {
			n, h, plan, link := begin(t)
			remove(t, n, link)
			_, err := h.report(plan)
			return err
		},
		"file exists: another has the name": func(t *testing.T) error {
			n, h, plan, link := begin(t)
			foreign(t, n, "macvlan0")
			return h.install(link, plan)
		},
		"file exists: another has the temporary name": func(t *testing.T) error {
			_, h, plan, _ := begin(t)
			_, err := h.conn.do(newListener(temporaryName("macvlan0"), Macvlan, nil, h.nsid, plan.Parent), 0)
			return refused(err, spec, plan.Parent)
		},
		"no such device: it went before it was marked": func(t *testing.T) error {
			n, h, plan, link := begin(t)
			remove(t, n, link)
			return h.install(link, plan)
		},
		"no such device: the one to be kept went": func(t *testing.T) error {
			n, h, plan, link := begin(t)
			remove(t, n, link)
			plan.Action, plan.existing = Keep, link
			_, err := h.apply(plan)
			return err
		},
		"no such device: the one to be replaced went": func(t *testing.T) error {
			n, h, plan, link := begin(t)
			remove(t, n, link)
			plan.Spec.Kind, plan.existing = IPvlan, link
			return h.changeKind(plan)
		},
	}
	for name, stage := range staged {
		t.Run(name, func(t *testing.T) {
			err := explain(stage(t))
			wantCause(t, err, ChangedMeanwhile)
			if !ChangedMeanwhile.Passing() {
				t.Error("got a cause that is not waited for")
			}
		})
	}
	answers := map[error]Cause{
		errNoLink: ChangedMeanwhile, unix.EXDEV: Refused, unix.EPERM: Forbidden, unix.ENOMEM: NoResources,
		unix.EMFILE: NoResources, os.ErrNotExist: OldKernel, unix.EPROTONOSUPPORT: OldKernel,
		errors.New("failed to read link: 3 bytes"): Refused,
	}
	for answer, want := range answers {
		err := fmt.Errorf("failed to do something: %w", answer)
		wantCause(t, explain(err), want)
		if got := CauseOf(err); got != want || got.String() == "" {
			t.Errorf("%v: got cause %s, want %s", answer, got, want)
		}
	}
}

// TestBusy: one that never ends does not keep the others waiting for ever.
func TestBusy(t *testing.T) {
	n := newNode(t)
	held, h := n.open(t), n.open(t)
	if err := held.lock.hold(func() error {
		_, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"})
		return err
	}); CauseOf(err) != Busy || !Busy.Passing() {
		t.Errorf("got %v, want a cause that is waited for", err)
	}
	if _, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"}); err != nil {
		t.Error(err)
	}
}
