// Package cluster looks at the objects of Kubernetes on which a network boot depends: the Service of the stack's
// address, its endpoints and pods, what keeps packets from them, what Tinkerbell's services believe, and Hardware. It
// reads, and changes nothing; what it may not read is not judged.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options say what to look at.
type Options struct {
	API       *API
	Namespace string   // of the stack
	Service   string   // its Service of the one address; empty: there is none
	Pods      string   // label selector of its pods
	AdminPort int      // of stack-proxy in them; 0: not asked
	Addresses []string // that machines are told
	Backends  []string // namespaces of Tinkerbell: its services, Hardware and Workflow objects
	// Dial connects to pods; nil: as this host does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Find takes a finding.
type Find func(name, format string, args ...any)

// looker is a look under way.
type looker struct {
	Options
	find Find
	pods []pod
}

// Look looks at everything.
func Look(ctx context.Context, o Options, find Find) {
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	l := &looker{Options: o, find: find}
	var err error
	if l.pods, err = list[pod](ctx, o.API, "/api/v1/namespaces/"+o.Namespace+"/pods", o.Pods); err != nil {
		l.unread("pods in "+o.Namespace, err)
	} else {
		l.lookAtPods(ctx)
	}
	var all sync.WaitGroup
	all.Go(func() { l.lookAtService(ctx) })
	for _, p := range l.pods {
		all.Go(func() { l.lookAtFiles(ctx, p) })
	}
	for _, namespace := range o.Backends {
		all.Go(func() { l.lookAtTrust(ctx, namespace) })
		all.Go(func() { l.lookAtHardware(ctx, namespace) })
	}
	all.Wait()
}

// unread says that something could not be looked at.
func (l *looker) unread(what string, err error) {
	switch {
	case errors.Is(err, errMissing):
	case errors.Is(err, errDenied):
		l.find("not-judged", "%s: %v", what, err)
	default:
		l.find("api-away", "%s: %v", what, err)
	}
}

// lookAtPods says which pods do not run, and why.
func (l *looker) lookAtPods(ctx context.Context) {
	if len(l.pods) == 0 {
		l.lookAtDeployments(ctx)
		return
	}
	for _, p := range l.pods {
		for _, c := range append(p.Status.Init, p.Status.Containers...) {
			if why := trouble(c); why != "" {
				l.find("pod-not-ready", "container %s of pod %s: %s", c.Name, p.Metadata.Name, why)
			}
		}
		for _, c := range p.Status.Conditions {
			if c.Type == "PodScheduled" && c.Status == "False" {
				l.find("pod-not-ready", "pod %s has no node: %s", p.Metadata.Name, c.Message)
			}
		}
	}
}

// trouble is why a container does not run; empty: it does, or it just begins.
func trouble(c containerStatus) string {
	text := func(s *stopped) string {
		said := s.Reason
		if s.ExitCode != 0 {
			said += " with code " + strconv.Itoa(s.ExitCode)
		}
		if s.Message != "" {
			said += ": " + s.Message
		}
		return said
	}
	begins := []string{"PodInitializing", "ContainerCreating"}
	switch {
	case c.State.Waiting != nil && !slices.Contains(begins, c.State.Waiting.Reason):
		said := text(c.State.Waiting)
		if c.Last.Terminated != nil {
			said += ", before that " + text(c.Last.Terminated)
		}
		return said
	case c.State.Terminated != nil && c.State.Terminated.ExitCode != 0:
		return text(c.State.Terminated)
	}
	return ""
}

// lookAtDeployments says why there is no pod: the namespace's Pod Security may refuse it, or a quota.
func (l *looker) lookAtDeployments(ctx context.Context) {
	path := "/apis/apps/v1/namespaces/" + l.Namespace + "/deployments"
	all, err := list[deployment](ctx, l.API, path, l.Pods)
	if err != nil {
		l.unread("Deployments in "+l.Namespace, err)
		return
	}
	for _, d := range all {
		for _, c := range d.Status.Conditions {
			if c.Type == "ReplicaFailure" && c.Status == "True" {
				l.find("pod-refused", "Deployment %s has no pod: %s", d.Metadata.Name, c.Message)
				return
			}
		}
	}
	l.find("pod-not-ready", "no pod of the stack is there (%s in %s)", l.Pods, l.Namespace)
}

// lookAtService looks at the Service, and at what is between it and the pods.
func (l *looker) lookAtService(ctx context.Context) {
	if l.Service == "" {
		return
	}
	name := l.Namespace + "/" + l.Service
	var s service
	switch err := l.API.get(ctx, "/api/v1/namespaces/"+l.Namespace+"/services/"+l.Service, nil, &s); {
	case errors.Is(err, errMissing):
		l.find("no-service", "there is no Service %s", name)
		return
	case err != nil:
		l.unread("Service "+name, err)
		return
	}
	var given []string
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		given = append(given, ingress.IP)
	}
	switch {
	case s.Spec.Type == "LoadBalancer" && len(given) == 0:
		l.find("no-load-balancer", "Service %s (%s) has no address: nobody gives it one", name,
			class(s.Spec.LoadBalancerClass))
	case s.Spec.Type == "LoadBalancer":
		for _, address := range l.Addresses {
			if !slices.Contains(given, address) {
				l.find("other-address", "machines are told %s, and Service %s has %s", address, name, strings.Join(given, ", "))
			}
		}
	}
	if s.Spec.ExternalTrafficPolicy == "Cluster" {
		l.find("source-hidden", "Service %s has externalTrafficPolicy Cluster: nodes put their own address in place of "+
			"the machine's", name)
	}
	l.lookAtEndpoints(ctx, name)
	l.lookAtPolicies(ctx, &s)
}

func class(name string) string {
	if name == "" {
		return "without a class"
	}
	return "class " + name
}

// lookAtEndpoints looks whether pods stand behind the Service, and listen.
func (l *looker) lookAtEndpoints(ctx context.Context, name string) {
	path := "/apis/discovery.k8s.io/v1/namespaces/" + l.Namespace + "/endpointslices"
	slices, err := list[endpointSlice](ctx, l.API, path, "kubernetes.io/service-name="+l.Service)
	if err != nil {
		l.unread("EndpointSlices in "+l.Namespace, err)
		return
	}
	ready := 0
	var all sync.WaitGroup
	for _, slice := range slices {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready || len(e.Addresses) == 0 {
				continue
			}
			ready++
			for _, p := range slice.Ports {
				if p.Protocol == "TCP" {
					all.Go(func() { l.lookAtPort(ctx, name, e.Addresses[0], p) })
				}
			}
		}
	}
	all.Wait()
	if ready == 0 {
		l.find("no-endpoints", "no pod behind Service %s is ready", name)
	}
}

// lookAtPort looks whether a pod listens where the Service leads.
func (l *looker) lookAtPort(ctx context.Context, name, address string, p endpointPort) {
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	at := net.JoinHostPort(address, strconv.Itoa(p.Port))
	conn, err := l.Dial(ctx, "tcp", at)
	if err == nil {
		_ = conn.Close()
		return
	}
	if strings.Contains(err.Error(), "refused") { // silence may be a policy's, which is looked at by itself
		l.find("endpoint-closed", "port %s of Service %s leads to %s, where nothing listens", p.Name, name, at)
	}
}

// lookAtPolicies says which ports NetworkPolicies keep from machines. Policies add up: what one lets in is in.
func (l *looker) lookAtPolicies(ctx context.Context, s *service) {
	if len(l.pods) == 0 {
		return
	}
	path := "/apis/networking.k8s.io/v1/namespaces/" + l.Namespace + "/networkpolicies"
	all, err := list[networkPolicy](ctx, l.API, path, "")
	if err != nil {
		l.unread("NetworkPolicies in "+l.Namespace, err)
		return
	}
	all = slices.DeleteFunc(all, func(p networkPolicy) bool {
		isIngress := len(p.Spec.PolicyTypes) == 0 || slices.Contains(p.Spec.PolicyTypes, "Ingress")
		return !isIngress || !p.Spec.PodSelector.selects(l.pods[0].Metadata.Labels)
	})
	var names, kept []string
	for _, p := range all {
		names = append(names, p.Metadata.Name)
	}
	for _, port := range s.Spec.Ports {
		if !slices.ContainsFunc(all, func(p networkPolicy) bool { return p.lets(port.Port, port.Protocol) }) {
			kept = append(kept, fmt.Sprintf("%s (%d/%s)", port.Name, port.Port, port.Protocol))
		}
	}
	if len(all) > 0 && len(kept) > 0 {
		l.find("network-policy", "NetworkPolicies %s let nobody outside of the cluster reach %s",
			strings.Join(names, ", "), strings.Join(kept, ", "))
	}
}

// lets tells whether a policy lets hosts outside of the cluster in. Ports by name are taken for the one that is meant.
func (p *networkPolicy) lets(port int, protocol string) bool {
	for _, rule := range p.Spec.Ingress {
		outside := len(rule.From) == 0
		for _, from := range rule.From {
			outside = outside || from.IPBlock != nil
		}
		reached := len(rule.Ports) == 0
		for _, open := range rule.Ports {
			number, isNumber := open.Port.(float64)
			same := open.Protocol == protocol || open.Protocol == "" && protocol == "TCP"
			reached = reached || same && (!isNumber || int(number) == port ||
				port >= int(number) && port <= open.EndPort)
		}
		if outside && reached {
			return true
		}
	}
	return false
}

// lookAtTrust looks whether Tinkerbell's services believe the pods' X-Forwarded-For: else a machine has the pod's
// address to them.
func (l *looker) lookAtTrust(ctx context.Context, namespace string) {
	if len(l.pods) == 0 {
		return
	}
	all, err := list[pod](ctx, l.API, "/api/v1/namespaces/"+namespace+"/pods", "")
	if err != nil {
		l.unread("pods in "+namespace, err)
		return
	}
	for _, backend := range all {
		trusted, told := backend.trusts()
		if !told {
			continue
		}
		for _, p := range l.pods {
			address, err := netip.ParseAddr(p.Status.PodIP)
			if err != nil || slices.ContainsFunc(trusted, func(t netip.Prefix) bool { return t.Contains(address) }) {
				continue
			}
			l.find("proxies-not-trusted", "pod %s/%s trusts the proxies %v, and pod %s of the stack has the address %s: "+
				"add the pods' network", namespace, backend.Metadata.Name, trusted, p.Metadata.Name, address)
			break
		}
	}
}

// trusts are the proxies that a pod's programs are told to trust, by a flag or a variable; told is false where they are
// told nothing, and for the stack's own programs, which trust other proxies.
func (p *pod) trusts() (all []netip.Prefix, told bool) {
	take := func(text string) {
		told = true
		for _, word := range strings.Split(text, ",") {
			word = strings.TrimSpace(word)
			if p, err := netip.ParsePrefix(word); err == nil {
				all = append(all, p.Masked())
			} else if a, err := netip.ParseAddr(word); err == nil {
				all = append(all, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	for _, c := range p.Spec.Containers {
		words := slices.Concat(c.Command, c.Args)
		for i, word := range words {
			name, value, whole := strings.Cut(strings.TrimLeft(word, "-"), "=")
			if !strings.HasPrefix(word, "-") || name != "trusted-proxies" {
				continue
			}
			if !whole && i+1 < len(words) {
				value = words[i+1]
			}
			take(value)
		}
		for _, variable := range c.Env {
			if strings.HasSuffix(variable.Name, "TRUSTED_PROXIES") && !strings.HasPrefix(variable.Name, "STACK_") &&
				variable.Value != "" {
				take(variable.Value)
			}
		}
	}
	return all, told
}
