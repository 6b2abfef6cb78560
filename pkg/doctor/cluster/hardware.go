package cluster

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
)

// mostNamed is how many objects are named for one kind of fault.
const mostNamed = 20

// lookAtHardware says which Hardware objects cannot boot.
func (l *looker) lookAtHardware(ctx context.Context, namespace string) {
	path := "/apis/tinkerbell.org/v1alpha1/namespaces/" + namespace
	all, err := list[hardware](ctx, l.API, path+"/hardware", "")
	if err != nil {
		l.unread("Hardware in "+namespace, err)
		return
	}
	workflows, err := list[workflow](ctx, l.API, path+"/workflows", "")
	if err != nil {
		l.unread("Workflows in "+namespace, err)
	}
	waits := map[string]string{} // Hardware, and the Workflow
	for _, w := range workflows {
		if slices.Contains([]string{"", "STATE_PENDING", "PENDING", "STATE_PREPARING", "PREPARING"}, w.Status.State) {
			waits[w.Spec.HardwareRef] = w.Metadata.Name
		}
	}
	var bare, wrong, shared, refused, installed []string
	owners := map[string][]string{}
	for _, h := range all {
		name := namespace + "/" + h.Metadata.Name
		usable, allowed := 0, false
		for _, i := range h.Spec.Interfaces {
			allowed = allowed || i.Netboot == nil || i.Netboot.AllowPXE == nil || *i.Netboot.AllowPXE
			if i.DHCP == nil {
				continue
			}
			usable++
			mac, err := net.ParseMAC(i.DHCP.MAC)
			if err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
				wrong = append(wrong, fmt.Sprintf("%s (%q)", name, i.DHCP.MAC))
				continue
			}
			if !slices.Contains(owners[mac.String()], name) {
				owners[mac.String()] = append(owners[mac.String()], name)
			}
		}
		switch workflow := waits[h.Metadata.Name]; {
		case usable == 0:
			bare = append(bare, name)
		case !allowed && workflow != "":
			refused = append(refused, fmt.Sprintf("%s (Workflow %s)", name, workflow))
		case !allowed:
			installed = append(installed, name)
		}
	}
	for mac, names := range owners {
		if len(names) > 1 {
			shared = append(shared, mac+" ("+strings.Join(names, ", ")+")")
		}
	}
	slices.Sort(shared)
	for _, f := range []struct {
		name, text string
		objects    []string
	}{
		{"hardware-without-interface", "Hardware has no interface with DHCP", bare},
		{"hardware-mac", "Hardware has a MAC that no machine can have", wrong},
		{"hardware-same-mac", "several Hardware objects have one MAC", shared},
		{"hardware-not-allowed", "a Workflow waits for Hardware that may not boot from the network (allowPXE)", refused},
		{"hardware-installed", "Hardware may not boot from the network, which is normal after an installation", installed},
	} {
		if len(f.objects) > 0 {
			l.find(f.name, "%s: %s", f.text, named(f.objects))
		}
	}
}

// named lists objects, not too many.
func named(all []string) string {
	if len(all) > mostNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:mostNamed], ", "), len(all)-mostNamed)
	}
	return strings.Join(all, ", ")
}
