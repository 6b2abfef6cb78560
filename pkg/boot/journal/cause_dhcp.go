package journal

import (
	"fmt"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// Names that the causes compare, without the package in front.
const (
	outcomeNoServer = boot.NoServer
	outcomeRefused  = boot.Refused
	outcomeTorn     = boot.Torn
	kindTFTP        = boot.TFTP
	kindStream      = boot.Stream
)

// ofDHCP explains a machine that asks for an address and does not get on.
func (j *Journal) ofDHCP(m *machine, b *record, now int64) *Cause {
	a, other := &b.asks[0], &b.asks[1]
	if other.last > a.last {
		a, other = other, a
	}
	waits := &j.options.Waits
	if strings.Contains(a.file, "netboot-not-allowed") {
		return certain(NetbootNotAllowed, allowRemedy, "The DHCP server answered %s that it may not boot from the network.", macString(b.mac))
	}
	if b.strays >= 2 && a.discovers == 0 && other.discovers == 0 {
		return wrongVLAN(b)
	}
	if c := j.elsewhere(b, a); c != nil {
		return c
	}
	if a.acked == 0 && other.acked == 0 {
		switch {
		case a.asked >= 2 && now-a.opened >= int64(waits.Offer):
			return j.unanswered(m, b, a, now)
		case a.offers >= 3 && a.requests == 0:
			return likely(OfferNotTaken, "See whether the offer reaches the machine (switch port, spanning tree, broadcast flag) and "+
				"whether it has what the firmware needs: an address and a boot file.", "%d offers of %s went to %s, and it took none.",
				a.offers, a.server, macString(b.mac))
		case a.naks >= 2:
			return certain(AddressRefused, "Look for two DHCP servers with one range, or a reservation outside of this network.",
				"%s refused the address that %s asked for, %d times.", a.server, macString(b.mac), a.naks)
		}
		return nil
	}
	if other.acked > a.acked {
		a = other
	}
	return j.acknowledged(m, b, a, now)
}

const allowRemedy = "Set allowPXE to true in the netboot section of this interface in the Hardware object."

func wrongVLAN(b *record) *Cause {
	remedy := "Look at the switch port's VLAN and native VLAN, and for a DHCP relay on the router: only one of the two may " +
		"take this VLAN's broadcasts."
	if b.stray == "other-host" {
		return likely(WrongVLAN, remedy, "%d frames of %s were heard, all of another VLAN or for another station; no DISCOVER of it "+
			"came to this relay.", b.strays, macString(b.mac))
	}
	return likely(WrongVLAN, remedy, "%d replies to %s came by, but no DISCOVER of it came to this relay: another relay took it.",
		b.strays, macString(b.mac))
}

// elsewhere explains a REQUEST for what another server offered.
func (j *Journal) elsewhere(b *record, a *ask) *Cause {
	if !a.chosen.IsValid() || a.proxy || a.acked > 0 {
		return nil
	}
	if len(a.servers) == 0 {
		return likely(OtherDHCPServer, "Find the server at that address, and switch its DHCP off on this network.",
			"%s took an offer of %s, a DHCP server that does not answer through this relay.", macString(b.mac), a.chosen)
	}
	return certain(OtherDHCPServer, "Find the server at that address, and switch its DHCP off on this network.",
		"%s was offered an address by %s and took that of %s instead: a second DHCP server.", macString(b.mac), a.servers[0], a.chosen)
}

// unanswered explains a machine that asks again and again.
func (j *Journal) unanswered(m *machine, b *record, a *ask, now int64) *Cause {
	mac := macString(b.mac)
	asked := fmt.Sprintf("%s asked %d times since %s", mac, a.asked, clock(a.opened))
	switch {
	case a.drop == "no-server":
		return certain(NoServer, "Look at the settings SERVER and at DNS: the relay knows no address of its DHCP server.",
			"%s, and the relay has no DHCP server to send it to.", asked)
	case a.drop != "":
		return certain(RelayDropped, "See the drop reason in docs/dhcp-relay.md.", "%s, and the relay dropped it: %s.", asked, a.drop)
	case a.lost != "":
		return certain(ReplyDropped, "See the drop reason in docs/dhcp-relay.md.",
			"%s, and the relay dropped the server's replies: %s.", asked, a.lost)
	}
	if j.options.Hardware != nil {
		if h, ok := j.options.Hardware(b.mac); ok {
			switch {
			case !h.Known:
				c := certain(NoHardware, "Create a Hardware object with this MAC, or correct the one that is meant.",
					"%s without an answer: no Hardware object has this MAC.", asked)
				if h.Closest != "" {
					c.Text += " The closest is " + h.Closest + "."
				}
				return c
			case !h.Netboot:
				return certain(NetbootNotAllowed, allowRemedy, "%s without an answer: allowPXE is false in Hardware object %s.",
					asked, h.Name)
			}
			return j.silent(m, a, asked, now)
		}
	}
	at, found := j.scene.other(m)
	switch {
	case found && at >= a.opened:
		return likely(NoHardware, "Create a Hardware object with this MAC, or set allowPXE to true in it.",
			"%s without an answer, while the server answers others: no Hardware object has this MAC, or it may not boot from the "+
				"network.", asked)
	case a.requests > 0 && len(a.servers) > 0:
		return likely(ServerSilent, silentRemedy, "%s; %s offered an address and does not confirm it.", asked, a.servers[0])
	case j.scene.waiting(m, now) > 1 || !found || a.opened-at > int64(15*time.Minute):
		return j.silent(m, a, asked, now)
	default:
		return likely(NoHardware, "Create a Hardware object with this MAC, or set allowPXE to true in it; if there is one, look "+
			"whether Smee runs.", "%s without an answer; the server answered another machine at %s, and nobody else has asked since.",
			asked, clock(at))
	}
}

const silentRemedy = "Look whether Smee runs and gets the requests, and whether its answers can reach the relay's address (giaddr)."

// silent explains a server that answers nobody.
func (j *Journal) silent(m *machine, a *ask, asked string, now int64) *Cause {
	c := likely(ServerSilent, silentRemedy, "%s without an answer", asked)
	if a.to.IsValid() {
		c.Text += " of " + peer(a.to)
	}
	if n := j.scene.waiting(m, now); n > 1 {
		c.Text += fmt.Sprintf(", as %d other machines do: the server answers nobody", n-1)
		c.Certain = n >= crowd
	}
	if a.relay.IsValid() {
		c.Text += fmt.Sprintf("; the request came through the relay %s", a.relay)
	}
	c.Text += "."
	return c
}

// acknowledged explains a machine that has its address and asks for nothing.
func (j *Journal) acknowledged(m *machine, b *record, a *ask, now int64) *Cause {
	waits := &j.options.Waits
	quiet := now - max(a.acked, b.end)
	mac := macString(b.mac)
	switch {
	case b.stage == OSDHCP:
		return nil
	case a.file == "" && !a.proxy && quiet >= int64(waits.Retry):
		c := likely(NoBootFile, "See whether the Hardware object allows netboot and whether Smee has a loader for this architecture.",
			"The answer of %s to %s names no boot file%s.", a.server, mac, m.archNote())
		return c
	case b.stage == DHCP && quiet >= int64(waits.Loader):
		if why := m.mismatch(a.file, false); why != "" {
			return likely(WrongArchitecture, wrongArchRemedy, "%s was told to load %s and asks for nothing: %s.", mac, quote(a.file), why)
		}
		return likely(LoaderNotAsked, "See whether the boot file's server is this service's address and can be reached from the "+
			"machine; with Secure Boot on, firmware may refuse it unasked.", "%s has the address %s and did not ask for %s%s.",
			mac, a.address, quote(a.file), nextServer(a))
	case b.stage == IPXEDHCP && b.loads >= 3:
		return certain(LoaderLoop, "The DHCP server has to tell iPXE (user class iPXE or Tinkerbell) from the firmware, and give it "+
			"a script.", "iPXE was loaded %d times and is told to load %s again.", b.loads, quote(a.file))
	case b.stage == IPXEDHCP && quiet >= int64(waits.Script):
		return likely(ScriptNotAsked, "See whether the script's URL is this service's address and can be reached from the machine.",
			"iPXE on %s has the address %s and did not ask for %s%s.", mac, a.address, quote(a.file), nextServer(a))
	default:
		return nil
	}
}

func nextServer(a *ask) string {
	if !a.next.IsValid() || strings.Contains(a.file, "://") {
		return ""
	}
	return " at " + a.next.String()
}
