package lb

import (
	"context"
	"net/netip"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
)

// Two stack-lb of one class in two namespaces: the older one announces the Service and writes its status, the other one does nothing
// but say so, until the older one has gone.
func TestTwoInstallationsOfOneClass(t *testing.T) {
	first := newCluster(t, 1)
	first.service("web", testIP)
	first.condition("web", "Announced", "")
	second := newClusterOn(t, first.wires, 1, 0)
	second.api, second.namespace = first.api, "other"
	second.nodes = append(second.nodes, second.start(0))
	second.until("it says so", func() bool { return second.nodes[0].log.has("another stack-lb announces a service") })
	writes := func() (n int) {
		for _, a := range first.api.Actions() {
			if update, ok := a.(clienttesting.UpdateAction); ok && update.GetSubresource() == "status" {
				n++
			}
		}
		return n
	}
	second.until("a second without a write of the status", func() bool { // the first one may have one to write yet
		before := writes()
		time.Sleep(time.Second)
		return writes() == before
	})
	first.stays(testIP, first.nodes[0].mac)
	first.nodes[0].leave()
	second.owner(testIP, second.nodes[0].mac)
	if first.wires.two > 0 {
		t.Error("two owners")
	}
}

// One that announces the Services of its own namespace is left to it, however old the one for all namespaces is.
func TestNamespaceIsItsOwnInstallations(t *testing.T) {
	wide := newCluster(t, 0)
	wide.namespace = "wide"
	wide.nodes = append(wide.nodes, wide.start(0))
	wide.service("web", testIP)
	wide.owner(testIP, wide.nodes[0].mac)
	own := newClusterOn(t, wide.wires, 1, 0)
	own.api, own.namespace, own.watch = wide.api, "stack", "stack"
	own.nodes = append(own.nodes, own.start(0))
	own.owner(testIP, own.nodes[0].mac)
	own.condition("web", "Announced", "")
	if owners := wide.wires.owners(netip.MustParseAddr(testIP)); len(owners) != 1 || wide.wires.two > 0 {
		t.Errorf("owners %x, two owners %d times", owners, wide.wires.two)
	}
}

// Which of two is the older one is known once both have their Leases, in whatever order they are heard of.
func TestTwoInstallationsThatStartTogether(t *testing.T) {
	c := newCluster(t, 0)
	other, someone := c.api.CoordinationV1().Leases("other"), "n9_boot"
	rival := &coordination.Lease{ObjectMeta: meta.ObjectMeta{
		Name: statusLease, Labels: leaseLabels, Annotations: map[string]string{classAnnotation: "tinkerbell.org/stack-lb"},
	}, Spec: coordination.LeaseSpec{HolderIdentity: &someone}}
	rival.Spec.RenewTime = new(meta.NowMicro())
	if _, err := other.Create(t.Context(), rival, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	renewing := renew(t, c, "other")
	defer renewing()
	c.service("web", testIP)
	c.nodes = append(c.nodes, c.start(0))
	c.until("it leaves the Service to the other", func() bool {
		return c.nodes[0].log.has("another stack-lb announces a service")
	})
	own := c.api.CoordinationV1().Leases("stack")
	c.until("it is the older one", func() bool {
		lease, err := own.Get(t.Context(), statusLease, meta.GetOptions{})
		if err != nil {
			return false
		}
		lease.CreationTimestamp = meta.NewTime(time.Now().Add(-time.Hour))
		_, err = own.Update(t.Context(), lease, meta.UpdateOptions{})
		return err == nil
	})
	c.condition("web", "Announced", "")
}

// renew renews the lease of another stack-lb until it is stopped.
func renew(t *testing.T, c *cluster, namespace string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; wait(ctx, quick.Retry) {
			lease, err := c.api.CoordinationV1().Leases(namespace).Get(ctx, statusLease, meta.GetOptions{})
			if err == nil {
				lease.Spec.RenewTime = new(meta.NowMicro())
				_, err = c.api.CoordinationV1().Leases(namespace).Update(ctx, lease, meta.UpdateOptions{})
			}
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// A lease of that name which nobody renews, however old, or one of a namespace that is not the Service's, takes nothing
// from anybody: whoever may create leases in one namespace could.
func TestLeaseThatNobodyRenewsIsNoRival(t *testing.T) {
	t.Parallel()
	someone, long := "n9_boot", meta.NewMicroTime(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	for name, test := range map[string]struct {
		namespace, watch string
		renewed          bool
	}{
		"expired, of the Service's namespace": {"stack", "stack", false},
		"expired, of all":                     {"other", "", false},
		"of another namespace, renewed":       {"other", "stack", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 0)
			c.namespace = "wide"
			rival := &coordination.Lease{ObjectMeta: meta.ObjectMeta{
				Name: statusLease, Labels: leaseLabels,
				Annotations: map[string]string{classAnnotation: "tinkerbell.org/stack-lb", watchAnnotation: test.watch},
			}, Spec: coordination.LeaseSpec{HolderIdentity: &someone, RenewTime: &long}}
			if _, err := c.api.CoordinationV1().Leases(test.namespace).Create(t.Context(), rival, meta.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if test.renewed {
				defer renew(t, c, test.namespace)()
			}
			c.service("web", testIP)
			c.nodes = append(c.nodes, c.start(0))
			c.owner(testIP)
			c.stays(testIP, c.nodes[0].mac)
		})
	}
}
