package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// The conditions.
const (
	// ConditionType says whether a Service's addresses are announced.
	ConditionType = "stack-lb.tinkerbell.org/Announced"
	// ForwardingType says whether what is sent to a Service in mode proxy finds an endpoint.
	ForwardingType = "stack-lb.tinkerbell.org/Forwarding"
)

// Holder is the node that announces an address; empty is none, for a reason, and Gone says that none has for long.
type Holder struct {
	Node string
	Why  *reason.Error
	Gone bool
}

// Status is what the status of a Service is to be, given who holds its addresses, and why what is sent to it is not
// forwarded (nil if it is). An address stays in it while it moves, since it will be the same then.
// changed is false if it is that already. The Service is not changed.
func Status(w *Wish, holders map[netip.Addr]Holder, forwards *reason.Error) (status core.ServiceStatus, changed bool) {
	status = *w.Service.Status.DeepCopy()
	mode := core.LoadBalancerIPModeVIP
	if w.Forward != nil {
		mode = core.LoadBalancerIPModeProxy
	}
	var ingress []core.LoadBalancerIngress
	for _, ip := range w.Addresses {
		there := slices.ContainsFunc(status.LoadBalancer.Ingress, func(i core.LoadBalancerIngress) bool {
			return i.IP == ip.String()
		})
		if there && !holders[ip].Gone || holders[ip].Node != "" {
			ingress = append(ingress, core.LoadBalancerIngress{IP: ip.String(), IPMode: &mode})
		}
	}
	status.LoadBalancer.Ingress = ingress
	condition := conditionOf(w, holders)
	condition.ObservedGeneration = w.Service.Generation
	meta.SetStatusCondition(&status.Conditions, condition)
	setForwarding(&status, w, forwards)
	// By value: ipMode is a pointer.
	return status, !equality.Semantic.DeepEqual(status, w.Service.Status)
}

// setForwarding sets the condition of a Service in mode proxy that has addresses, and removes it from others.
func setForwarding(status *core.ServiceStatus, w *Wish, why *reason.Error) {
	if w.Forward == nil || len(w.Addresses) == 0 {
		meta.RemoveStatusCondition(&status.Conditions, ForwardingType)
		return
	}
	c := metav1.Condition{
		Type: ForwardingType, Status: metav1.ConditionTrue, Reason: reason.Forwarding.String(),
		Message: "every port has an endpoint", ObservedGeneration: w.Service.Generation,
	}
	if why != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, why.Reason.String(), why.Text
	}
	meta.SetStatusCondition(&status.Conditions, c)
}

func conditionOf(w *Wish, holders map[netip.Addr]Holder) metav1.Condition {
	var said []string
	first := reason.Announced
	add := func(why *reason.Error) {
		if first == reason.Announced {
			first = why.Reason
		}
		said = append(said, why.Text)
	}
	for _, why := range w.Refused {
		add(why)
	}
	for _, ip := range w.Addresses {
		switch h := holders[ip]; {
		case h.Node != "":
			said = append(said, fmt.Sprintf("%s is announced by node %s", ip, h.Node))
		case h.Why != nil:
			add(reason.Errorf(h.Why.Reason, "no node announces %s; %s", ip, h.Why.Text))
		default:
			add(reason.Errorf(reason.NoNode, "no node announces %s", ip))
		}
	}
	c := metav1.Condition{Type: ConditionType, Status: metav1.ConditionTrue, Reason: first.String()}
	if first != reason.Announced {
		c.Status = metav1.ConditionFalse
	}
	c.Message = strings.Join(said, "; ")
	return c
}

// Without is the status of a Service that is not ours any more: without what we have said. changed is false if there is
// nothing of that.
func Without(s *core.Service) (status core.ServiceStatus, changed bool) {
	status = *s.Status.DeepCopy()
	if meta.FindStatusCondition(status.Conditions, ConditionType) == nil {
		return status, false
	}
	meta.RemoveStatusCondition(&status.Conditions, ConditionType)
	meta.RemoveStatusCondition(&status.Conditions, ForwardingType)
	if s.Spec.Type != core.ServiceTypeLoadBalancer {
		status.LoadBalancer = core.LoadBalancerStatus{}
	}
	return status, true
}
