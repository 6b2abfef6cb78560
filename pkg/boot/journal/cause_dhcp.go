package journal

import (
	"fmt"
	"strings"
	"time"
)

// ofDHCP explains a machine that asks for an address and does not get on.
func (j *Journal) ofDHCP(m *machine, b *record, now int64) *Cause {
	a, other := &b.asks[0], &b.asks[1]
	if other.last > a.last {
		a, other = other, a
	}
	waits := &j.options.Waits
	if strings.Contains(a.file, "netboot-not-allowed") {
		return certain(NetbootNotAllowed, "The DHCP server answered %s that it may not boot from the network.",
			macString(b.mac))
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
		case a.offers >= 3 && a.discovers >= 3 && a.requests == 0: // several servers may offer for one DISCOVER
			return likely(OfferNotTaken, "%d offers of %s went to %s, and it took none.",
				a.offers, a.server, macString(b.mac))
		case a.naks >= 2:
			return certain(AddressRefused, "%s refused the address that %s asked for, %d times.",
				a.server, macString(b.mac), a.naks)
		}
		return nil
	}
	if other.acked > a.acked {
		a = other
	}
	return j.acknowledged(m, b, a, now)
}

func wrongVLAN(b *record) *Cause {
	if b.stray == "other-host" {
		return likely(WrongVLAN, "%d frames of %s were heard, all of another VLAN or for another station; no DISCOVER of "+
			"it came to this relay.", b.strays, macString(b.mac))
	}
	return likely(WrongVLAN, "%d replies to %s came by, but no DISCOVER of it came to this relay: another relay took it.",
		b.strays, macString(b.mac))
}

// elsewhere explains a REQUEST for what another server offered.
func (j *Journal) elsewhere(b *record, a *ask) *Cause {
	if !a.chosen.IsValid() || a.proxy || a.acked > 0 {
		return nil
	}
	if len(a.servers) == 0 {
		return likely(OtherDHCPServer, "%s took an offer of %s, a DHCP server that does not answer through this relay.",
			macString(b.mac), a.chosen)
	}
	return certain(OtherDHCPServer, "%s was offered an address by %s and took that of %s instead: a second DHCP server.",
		macString(b.mac), a.servers[0], a.chosen)
}

// unanswered explains a machine that asks again and again.
func (j *Journal) unanswered(m *machine, b *record, a *ask, now int64) *Cause {
	mac := macString(b.mac)
	asked := fmt.Sprintf("%s asked %d times since %s", mac, a.asked, clock(a.opened))
	switch {
	case a.drop == "no-server":
		return certain(NoServer, "%s, and the relay has no DHCP server to send it to.", asked)
	case a.drop != "":
		return certain(RelayDropped, "%s, and the relay dropped it: %s.", asked, a.drop)
	case a.lost != "":
		return certain(ReplyDropped, "%s, and the relay dropped the server's replies: %s.", asked, a.lost)
	}
	if j.options.Hardware != nil {
		if h, ok := j.options.Hardware(b.mac); ok {
			switch {
			case !h.Known:
				c := certain(NoHardware, "%s without an answer: no Hardware object has this MAC.", asked)
				if h.Closest != "" {
					c.Text += " The closest is " + h.Closest + "."
				}
				return c
			case !h.Netboot:
				return certain(NetbootNotAllowed, "%s without an answer: allowPXE is false in Hardware object %s.",
					asked, h.Name)
			}
			return j.silent(m, a, asked, now)
		}
	}
	at, found := j.scene.other(m)
	switch {
	case found && at >= a.opened:
		c := likely(NoHardware, "%s without an answer, while the server answers others: no Hardware object has this MAC, "+
			"or it may not boot from the network.", asked)
		c.Remedy = "Create a Hardware object with this MAC, or set allowPXE to true in it."
		return c
	case a.requests > 0 && len(a.servers) > 0:
		return likely(ServerSilent, "%s; %s offered an address and does not confirm it.", asked, a.servers[0])
	case m.rank >= offered || j.scene.waiting(m, now) > 1 || !found || a.opened-at > int64(15*time.Minute):
		return j.silent(m, a, asked, now)
	default:
		c := likely(NoHardware, "%s without an answer; the server answered another machine at %s, and nobody else has "+
			"asked since.", asked, clock(at))
		c.Remedy = "Create a Hardware object with this MAC, or set allowPXE to true in it; if there is one, look whether " +
			"Smee runs."
		return c
	}
}

// silent explains a server that answers nobody.
func (j *Journal) silent(m *machine, a *ask, asked string, now int64) *Cause {
	c := likely(ServerSilent, "%s without an answer", asked)
	if a.to.IsValid() {
		c.Text += " of " + peer(a.to)
	}
	if n := j.scene.waiting(m, now); n > 1 {
		others := "1 other machine does"
		if n > 2 {
			others = fmt.Sprintf("%d other machines do", n-1)
		}
		c.Text += ", as " + others + ": the server answers nobody"
		c.Certain = n >= crowd
	}
	if a.relay.IsValid() {
		c.Text += fmt.Sprintf("; the request came through the relay %s", a.relay)
	}
	c.Text += "."
	return c
}

// elsewhereWait is how long a machine that has its address may ask for nothing here, while no machine does: another
// replica serves them then, and the machine's next DHCP message shows that it got on.
const elsewhereWait = 5 * time.Minute

// acknowledged explains a machine that has its address and asks for nothing.
func (j *Journal) acknowledged(m *machine, b *record, a *ask, now int64) *Cause {
	waits := j.options.Waits
	if j.options.Others && now-j.scene.loaded >= int64(elsewhereWait) {
		waits.Loader, waits.Script = max(waits.Loader, elsewhereWait), max(waits.Script, elsewhereWait)
	}
	quiet := now - max(a.acked, b.end)
	mac := macString(b.mac)
	switch {
	case b.stage == OSDHCP:
		return nil
	case a.file == "" && !a.proxy && quiet >= int64(waits.Retry):
		return likely(NoBootFile, "The answer of %s to %s names no boot file%s.", a.server, mac, m.archNote())
	case b.stage == DHCP && quiet >= int64(waits.Loader):
		if why := m.mismatch(a.file, false); why != "" {
			return likely(WrongArchitecture, "%s was told to load %s and asks for nothing: %s.", mac, quote(a.file), why)
		}
		return likely(LoaderNotAsked, "%s has the address %s and did not ask for %s%s.",
			mac, a.address, quote(a.file), nextServer(a))
	case b.stage == IPXEDHCP && b.loads >= 3:
		return certain(LoaderLoop, "iPXE was loaded %d times and is told to load %s again.", b.loads, quote(a.file))
	case b.stage == IPXEDHCP && quiet >= int64(waits.Script):
		return likely(ScriptNotAsked, "iPXE on %s has the address %s and did not ask for %s%s.",
			mac, a.address, quote(a.file), nextServer(a))
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
